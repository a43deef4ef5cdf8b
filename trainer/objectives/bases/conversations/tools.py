"""Definitions of tools that an assistant may call, in the forms that people have them, as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def read_tools(given: Any) -> list[dict[str, Any]]:
    """Return tools in OpenAI's form, `{"type": "function", "function": {"name": ..., "parameters": ...}}`; none if there is nothing.

    They may be a list or JSON of one, as LLaMA-Factory has it, of records or of JSON of them; and without the outer record, as OpenAI's older
    `functions` are.

    Raises:
        ValueError: they are something else.
    """
    if given is None or (isinstance(given, str) and not given.strip()):
        return []
    found = _parsed(given)
    listed = [found] if isinstance(found, Mapping) else found
    if not isinstance(listed, list):
        raise ValueError("its tools are no list of definitions, nor JSON of one")  # noqa: TRY004
    return [_read_tool(i, _parsed(tool)) for i, tool in enumerate(listed)]


def _read_tool(i: int, tool: Any) -> dict[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"its tool {i} has no name")  # noqa: TRY004
    return dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its tools are no JSON: {error}") from error

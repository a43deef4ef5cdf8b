"""Messages as a chat template takes them: without what it writes, too, and calls of tools with arguments in the form that it asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from trainer.objectives.bases.messages import Turns, read_turns

_PLAIN_TURNS: Final = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


class MessageReader:
    """Reads messages for a chat template, which `render` fills: ValueError if it has no place for them."""

    def __init__(self, render: Callable[[Turns], str], *, begin: str | None, end: str) -> None:
        self._render, self._begin, self._end = render, begin, end

    def read(self, messages: Any) -> list[dict[str, Any]]:
        """Return messages as `read_turns` does, without the tokens of begin and end of text that the template writes, too.

        Arguments of tool calls are objects, also where they are JSON text, as OpenAI has them; or that text, if the template takes nothing else.
        """
        turns = read_turns(messages)
        for i, turn in enumerate(turns):
            content = turn["content"]
            if i == 0 and self._begin and content.startswith(self._begin) and self._written.startswith(self._begin):
                turn["content"] = content.removeprefix(self._begin)
            is_ended = turn["role"] == "assistant" and content.rstrip().endswith(self._end)
            if is_ended and self._written.rstrip().endswith(self._end):
                turn["content"] = content.rstrip().removesuffix(self._end)
            for key in ("tool_calls", "function_call"):
                if key in turn:
                    turn[key] = _change_arguments(turn[key], _as_object if self._takes_objects else _as_text)
        return turns

    @cached_property
    def _written(self) -> str:
        """A small conversation; empty if the template refuses it."""
        with suppress(ValueError):
            return self._render(_PLAIN_TURNS)
        return ""

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether the template writes a call whose arguments are an object, or none at all."""
        return self._writes_call({"a": "b"}) or not self._writes_call('{"a": "b"}')

    def _writes_call(self, arguments: Any) -> bool:
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "c", "arguments": arguments}}
        asked, answer = _PLAIN_TURNS
        with suppress(ValueError):
            self._render([asked, {**answer, "content": "", "tool_calls": [call]}])
            return True
        return False


def _change_arguments(call: Any, change: Callable[[Any], Any]) -> Any:
    """Return a call, or a list of calls, with changed arguments."""
    if isinstance(call, list):
        return [_change_arguments(own, change) for own in call]
    changes = {"function": lambda own: _change_arguments(own, change), "arguments": change}
    return {k: changes[k](v) if k in changes else v for k, v in call.items()} if isinstance(call, Mapping) else call


def _as_object(arguments: Any) -> Any:
    with suppress(ValueError, RecursionError):
        if isinstance(arguments, str) and isinstance(found := json.loads(arguments), dict):
            return found
    return arguments


def _as_text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else arguments

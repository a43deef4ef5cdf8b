"""dvc.lock as DVC writes it, with the stages of one recipe from another copy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from params import RecipeError


def parse_recipe_stages(text: str, recipe: str, *, where: str) -> Mapping[str, Any]:
    """Return the stages of `recipe` in the text of a dvc.lock, by name, such as `train@default`."""
    from dvc.utils.serialize import parse_yaml

    found = _parse(text, where, parse_yaml).get("stages") or {}  # several times as fast as what keeps a text's form
    return {name: entry for name, entry in found.items() if _is_of(name, recipe)}


def with_recipe_stages(theirs: str, ours: Mapping[str, Any], recipe: str, *, where: str) -> str:
    """Return `theirs`, the text of a dvc.lock, with the stages of `recipe` replaced by `ours`."""
    from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update

    content = _parse(theirs, where, parse_yaml_for_update) or {"schema": "2.0"}
    stages = content["stages"] = content.get("stages") or {}
    for name in [name for name in stages if _is_of(name, recipe) and name not in ours]:
        del stages[name]
    stages.update(ours)
    return str(dumps_yaml(content))


def _parse(text: str, where: str, parse: Callable[[str, str], Any]) -> Any:
    from dvc.utils.serialize import YAMLFileCorruptedError

    content: Any = None
    with contextlib.suppress(YAMLFileCorruptedError):
        content = parse(text, "dvc.lock")
    if not isinstance(content, dict) or not isinstance(content.get("stages") or {}, dict):
        raise RecipeError(where, "dvc.lock is damaged there", "restore it from git's history")
    return content


def _is_of(name: str, recipe: str) -> bool:
    return name.partition("@")[2] == recipe

"""A recipe's line in dvc.yaml and its deployment in prefect.yaml: added and removed as text, so that all else stays as it is.

ruamel.yaml would write comments and spaces of other lines anew. Each edit is therefore checked by reading the file before and
after: only the recipe's own item may differ.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params import RecipeError
from tasks.scaffold.yaml_text import scalar

DVC: Final = Path("dvc.yaml")
PREFECT: Final = Path("prefect.yaml")
_FLOW: Final = "flows/retrain.py:retrain"
NO_BASE: Final = "trainer/rewards.py"
"""Stands in a line for the folder of a model if the recipe starts from none; stages that read one watch it anyway."""
_CODE: Final = "trainer/losses.py"
_SLUG: Final = "schedule"
"""By it, and without `active`, `prefect deploy` finds a schedule again, and leaves it paused if somebody has paused it."""


def project_root() -> Path:
    """Return the project's root, which is the working directory.

    Raises:
        RecipeError: it is another folder.
    """
    missing = [name for name in ("params", "dvc.yaml", "prefect.yaml") if not Path(name).exists()]
    if missing:
        raise RecipeError(str(Path().absolute()), f"has no {', '.join(missing)}", "run this in the root of the project")
    return Path()


def with_line(text: str, name: str, *, data: str, objective: str, base: str = NO_BASE) -> str:
    """Return dvc.yaml with the line of a recipe; the same text if it has this line.

    `base` is the folder of the model that the recipe starts from.

    Raises:
        RecipeError: it has another line for this recipe, or no list of recipes.
    """
    for flag, path in (("--data", data), ("--model", base)):
        if "${" in path:  # DVC would fill something in
            what = f"{path!a} has `${{` in it, which has a meaning for DVC"
            raise RecipeError(flag, what, "rename the file or the folder")
    item = {"data": data, "objective": objective, "base": base, "code": _CODE}
    recipes = _recipes(_parsed(text, DVC))
    if name in recipes:
        if recipes[name] == item:
            return text
        what = f"lists {name} with other data, objective, base or code: {dict(recipes[name])}"
        raise RecipeError(str(DVC), what, f"choose another name, or remove it first: evergreen remove {name}")
    line = f"{scalar(name)}: {{data: {scalar(data)}, objective: {objective}, base: {scalar(base)}, code: {_CODE}}}"
    lines = text.splitlines(keepends=True)
    place, indent = _end_of_block(lines, "recipes")
    changed = "".join([*lines[:place], f"{' ' * indent}{line}\n", *lines[place:]])

    def expected(content: Any) -> None:
        _recipes(content)[name] = item

    return _verified(text, changed, expected, DVC)


def without_line(text: str, name: str) -> str:
    """Return dvc.yaml without the line of a recipe, which may be several lines."""
    if name not in _recipes(_parsed(text, DVC)):
        return text
    lines = text.splitlines(keepends=True)
    pattern = re.compile(rf"(\s+)(['\"]?){re.escape(name)}\2\s*:")
    place, indent = next((i, len(m[1])) for i, line in enumerate(lines) if (m := pattern.match(line)))
    end = _end_of_item(lines, place, indent)

    def expected(content: Any) -> None:
        del _recipes(content)[name]

    return _verified(text, "".join([*lines[:place], *lines[end:]]), expected, DVC)


def with_deployment(text: str, name: str, schedule: str) -> str:
    """Return prefect.yaml with a deployment of a recipe on a schedule; the same text if it has this one.

    Raises:
        RecipeError: it has another deployment of this name, or nothing that deployments of the flow share.
    """
    content = _parsed(text, PREFECT)
    shared = content.get("definitions", {}).get("retrain") if isinstance(content.get("definitions"), Mapping) else None
    if not isinstance(shared, Mapping) or "&retrain" not in text:
        fix = "restore `definitions: {retrain: &retrain ...}` and `deployments:` as the project has them"
        raise RecipeError(str(PREFECT), "has no `&retrain`, which deployments share", fix)
    item = {
        **shared,
        "name": name,
        "description": f"Retrain {name} and publish it if it is better.",
        "parameters": {"recipe": name},
        "schedules": [{"slug": _SLUG, "cron": schedule, "timezone": "UTC"}],
    }
    earlier = {**item, "schedules": [{"cron": schedule, "timezone": "UTC", "active": True}]}
    for deployment in _deployments(content):
        if deployment.get("name") == name:
            if deployment in (item, earlier):
                return text
            fix = f"choose another name, or remove it first: evergreen remove {name}"
            raise RecipeError(str(PREFECT), f"has another deployment {name}", fix)
    lines = text.splitlines(keepends=True)
    place, indent = _end_of_block(lines, "deployments")
    body = [
        "",
        "- <<: *retrain",
        f"  name: {scalar(name)}",
        f"  description: {item['description']}",
        "  parameters:",
        f"    recipe: {scalar(name)}",
        "  schedules:",
        f"    - slug: {_SLUG}",
        f"      cron: {scalar(schedule)}",
        "      timezone: UTC",
    ]
    added = [f"{' ' * indent}{line}".rstrip() + "\n" for line in body]

    def expected(content: Any) -> None:
        content["deployments"].append(item)

    return _verified(text, "".join([*lines[:place], *added, *lines[place:]]), expected, PREFECT)


def without_deployments(text: str, name: str) -> tuple[str, list[str]]:
    """Return prefect.yaml without the deployments of a recipe, and their names."""
    removed: list[str] = []
    while True:
        deployments = _deployments(_parsed(text, PREFECT))
        found = next((i for i, one in enumerate(deployments) if _deploys(one, name)), None)
        if found is None:
            return text, removed
        removed.append(str(deployments[found].get("name")))
        text = _without_deployment(text, found)


def _without_deployment(text: str, number: int) -> str:
    lines = text.splitlines(keepends=True)
    start = _start_of_block(lines, "deployments")
    end, indent = _end_of_block(lines, "deployments")
    places = [i for i in range(start, end) if lines[i].startswith(f"{' ' * indent}- ")]
    place = places[number]
    stop = _end_of_item(lines, place, indent)
    if place and not lines[place - 1].strip():
        place -= 1

    def expected(content: Any) -> None:
        del content["deployments"][number]

    return _verified(text, "".join([*lines[:place], *lines[stop:]]), expected, PREFECT)


def _deploys(deployment: Mapping[str, Any], name: str) -> bool:
    parameters = deployment.get("parameters")
    return (
        isinstance(parameters, Mapping) and parameters.get("recipe") == name and deployment.get("entrypoint") == _FLOW
    )


def _verified(before: str, after: str, change: Callable[[Any], None], path: Path) -> str:
    """Return the changed text, if reading it gives the content before with this change only."""
    expected = copy.deepcopy(_parsed(before, path))
    change(expected)
    if _parsed(after, path) != expected:
        raise RecipeError(
            str(path), "has a form that cannot be edited automatically", "edit it by hand: docs/own-data.md"
        )
    return after


def _parsed(text: str, path: Path) -> Any:
    try:
        content = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise RecipeError(str(path), f"not valid YAML: {error}", "fix the syntax") from error
    return content if isinstance(content, dict) else {}


def _recipes(content: Any) -> Any:
    """Return the recipes at the top of dvc.yaml."""
    for variables in content.get("vars") or ():
        if isinstance(variables, dict) and isinstance(variables.get("recipes"), dict):
            return variables["recipes"]
    raise RecipeError(str(DVC), "has no list of recipes", "add `vars: [recipes: {}]` at its top, as the project has it")


def _deployments(content: Any) -> list[Any]:
    found = content.get("deployments")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _start_of_block(lines: list[str], key: str) -> int:
    """Return the line after `key:`."""
    pattern = re.compile(rf"[\s-]*{key}:\s*(#.*)?$")
    for i, line in enumerate(lines):
        if pattern.match(line):
            return i + 1
    raise RecipeError(key, f"no line says `{key}:` only", "write its items on lines of their own")


def _end_of_block(lines: list[str], key: str) -> tuple[int, int]:
    """Return the line behind the last item below `key:`, without comments that follow, and the indent of the items."""
    start = _start_of_block(lines, key)
    key_indent = len(lines[start - 1]) - len(lines[start - 1].lstrip(" -"))
    place, indent = start, None
    for i in range(start, len(lines)):
        line = lines[i]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        own = len(line) - len(line.lstrip(" "))
        if own < key_indent or (own == key_indent and not line.lstrip().startswith("- ")):
            break
        indent = own if indent is None else indent
        place = i + 1
    return place, key_indent + 2 if indent is None else indent


def _end_of_item(lines: list[str], place: int, indent: int) -> int:
    """Return the line behind an item that begins at `place`: deeper lines belong to it, comments that follow do not."""
    end = place + 1
    for i in range(place + 1, len(lines)):
        line = lines[i]
        if not line.strip() or (line.lstrip().startswith("#") and len(line) - len(line.lstrip(" ")) <= indent):
            continue
        if len(line) - len(line.lstrip(" ")) <= indent:
            break
        end = i + 1
    return end

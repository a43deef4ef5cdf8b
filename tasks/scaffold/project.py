"""A recipe's item in recipes.yaml and its deployment in prefect.yaml: added and removed as text, so that all else stays as it is.

ruamel.yaml would write comments and spaces of other lines anew. Each edit is therefore checked by reading the file before and
after: only the recipe's own item may differ.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params import RecipeError
from params.dvc_files import RECIPES
from tasks.scaffold.yaml_text import scalar

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
    missing = [name for name in ("params", "recipes.yaml", "prefect.yaml") if not Path(name).exists()]
    if missing:
        raise RecipeError(str(Path().absolute()), f"has no {', '.join(missing)}", "run this in the root of the project")
    return Path()


def with_item(text: str, name: str, *, data: str, objective: str, base: str = NO_BASE) -> str:
    """Return recipes.yaml with the item of a recipe at its end; the same text if it has this item.

    `base` is the folder of the model that the recipe starts from.

    Raises:
        RecipeError: it has another item for this recipe, or no list of recipes.
    """
    for flag, path in (("--data", data), ("--model", base)):
        if "${" in path:  # DVC would fill something in
            what = f"{path!a} has `${{` in it, which has a meaning for DVC"
            raise RecipeError(flag, what, "rename the file or the folder")
    item = {"data": data, "objective": f"trainer/objectives/{objective}.py", "base": base, "code": _CODE}
    recipes = _recipes(_parsed(text, RECIPES))
    if name in recipes:
        if recipes[name] == item:
            return text
        what = f"lists {name} with other data, objective, base or code: {dict(recipes[name])}"
        raise RecipeError(str(RECIPES), what, f"choose another name, or remove it first: evergreen remove {name}")
    lines = [f"  {scalar(name)}:", *(f"    {key}: {scalar(path)}" for key, path in item.items())]

    def expected(content: Any) -> None:
        content["recipes"] = {**_recipes(content), name: item}

    if not recipes:
        text = re.sub(r"^recipes: *\{\}", "recipes:", text, flags=re.MULTILINE)
    return _verified(text, _extended(text, lines), expected, RECIPES)


def without_item(text: str, name: str) -> str:
    """Return recipes.yaml without the item of a recipe."""
    recipes = _recipes(_parsed(text, RECIPES))
    if name not in recipes:
        return text
    text = _without(text, RECIPES, "recipes", name)
    return (
        text if len(recipes) > 1 else re.sub("^recipes:", "recipes: {}", text, flags=re.MULTILINE)
    )  # DVC reads no empty value


def with_deployment(text: str, name: str, schedule: str) -> str:
    """Return prefect.yaml with a deployment of a recipe on a schedule at its end; the same text if it has this one.

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
    lines = [
        "",
        "  - <<: *retrain",
        f"    name: {scalar(name)}",
        f"    description: {item['description']}",
        "    parameters:",
        f"      recipe: {scalar(name)}",
        "    schedules:",
        f"      - slug: {_SLUG}",
        f"        cron: {scalar(schedule)}",
        "        timezone: UTC",
    ]

    def expected(content: Any) -> None:
        content["deployments"].append(item)

    return _verified(text, _extended(text, lines), expected, PREFECT)


def without_deployments(text: str, name: str) -> tuple[str, list[str]]:
    """Return prefect.yaml without the deployments of a recipe, and their names."""
    removed: list[str] = []
    while True:
        deployments = _deployments(_parsed(text, PREFECT))
        found = next((i for i, one in enumerate(deployments) if _deploys(one, name)), None)
        if found is None:
            return text, removed
        removed.append(str(deployments[found].get("name")))
        text = _without(text, PREFECT, "deployments", found)


def _without(text: str, path: Path, key: str, item: str | int) -> str:
    """Return a file without one item, given by name or number, of the mapping or list `key`."""
    lines = text.splitlines(keepends=True)
    where = YAML().load(text)[key].lc
    place = int((where.key(item) if isinstance(item, str) else where.item(item))[0])
    end = _end_of_item(lines, place)
    if isinstance(item, int) and not lines[place - 1].strip():
        place -= 1

    def expected(content: Any) -> None:
        del content[key][item]
        content[key] = content[key] or None

    return _verified(text, "".join([*lines[:place], *lines[end:]]), expected, path)


def _deploys(deployment: Mapping[str, Any], name: str) -> bool:
    parameters = deployment.get("parameters")
    return (
        isinstance(parameters, Mapping) and parameters.get("recipe") == name and deployment.get("entrypoint") == _FLOW
    )


def _verified(before: str, after: str, change: Callable[[Any], None], path: Path) -> str:
    """Return the changed text, if reading it gives the content before with this change only."""
    expected = copy.deepcopy(_parsed(before, path))
    change(expected)
    with contextlib.suppress(RecipeError):
        if _parsed(after, path) == expected:
            return after
    raise RecipeError(str(path), "has a form that cannot be edited automatically", "edit it by hand: docs/own-data.md")


def _parsed(text: str, path: Path) -> Any:
    try:
        content = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise RecipeError(str(path), f"not valid YAML: {error}", "fix the syntax") from error
    return content if isinstance(content, dict) else {}


def _recipes(content: Any) -> Mapping[str, Any]:
    recipes = content.get("recipes", 0) or {}
    if "recipes" not in content or not isinstance(recipes, dict):
        raise RecipeError(str(RECIPES), "has no list of recipes", "end it with `recipes:`, as the project has it")
    return recipes


def _extended(text: str, lines: Iterable[str]) -> str:
    """Return a file with more lines at its end, where no later version of the project changes a line."""
    return "".join(f"{line}\n" for line in (*text.rstrip("\n").split("\n"), *lines))


def _deployments(content: Any) -> list[Any]:
    found = content.get("deployments")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _end_of_item(lines: list[str], place: int) -> int:
    """Return the line behind an item that begins at `place`: deeper lines belong to it, comments that follow do not."""
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    end = place + 1
    for i in range(place + 1, len(lines)):
        if indents[i] > indents[place] and lines[i].strip():
            end = i + 1
        elif lines[i].strip() and not lines[i].lstrip().startswith("#"):
            break
    return end

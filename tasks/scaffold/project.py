"""What a project says of a recipe: the text of its file, its item in recipes.yaml and its deployments in prefect.yaml.

The last two are added and removed as text, because ruamel.yaml would write comments and spaces of other lines anew. Each edit is
checked by reading the file before and after: only the recipe's own item may differ.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params import RecipeError
from params.dvc_files import RECIPES
from params.foundation.artifacts import Artifacts, write_text_atomically
from tasks.recipes.loading import recipe_name_problem
from trainer.identity import find_objective_plugin
from trainer.objectives.advice.base import AdvisedValue

if TYPE_CHECKING:
    from tasks.scaffold.choices import Keys
    from tasks.scaffold.look import RowSample
    from tasks.scaffold.model_facts import ModelFacts
    from tasks.scaffold.plan import RecipePlan
    from tasks.scaffold.proposal import ObjectiveProposal

PREFECT: Final = Path("prefect.yaml")
_FLOW: Final = "flows/retrain.py:retrain"
NO_BASE: Final = "trainer/rewards.py"
"""Stands in a line for the folder of a model if the recipe starts from none; stages that read one watch it anyway."""
_CODE: Final = "trainer/losses.py"
_SLUG: Final = "schedule"
"""By it, and without `active`, `prefect deploy` finds a schedule again, and leaves it paused if somebody has paused it."""
_PINS: Final = "requirements.txt"
"""The file that names the version of a package that brings the objective; `evergreen check` says what it lacks."""
_WIDTH: Final = 120
_PLAIN: Final = re.compile(r"(\.\.?/)*[A-Za-z/][\w./@+-]*", re.ASCII)
_RESERVED: Final = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}


def require_project_root() -> Path:
    """Return the project's root, which is the working directory; RecipeError if that is another folder."""
    missing = [name for name in ("params", "recipes.yaml", "prefect.yaml") if not Path(name).exists()]
    if missing:
        raise RecipeError(str(Path().absolute()), f"has no {', '.join(missing)}", "run this in the root of the project")
    return Path()


def recipes_yaml_with_item(text: str, name: str, *, data: str, objective: str, base: str = NO_BASE) -> str:
    """Return recipes.yaml with the item of a recipe at its end; the same text if it has this item.

    `base` is the folder of the model that the recipe starts from.

    Raises:
        RecipeError: it has another item for this recipe, or no list of recipes.
    """
    for flag, path in (("--data", data), ("--model", base)):
        if "${" in path:  # DVC would fill something in
            what = f"{path!a} has `${{` in it, which has a meaning for DVC"
            raise RecipeError(flag, what, "rename the file or the folder")
    own = _PINS if find_objective_plugin(objective) else f"trainer/objectives/{objective}.py"
    item = {"data": data, "objective": own, "base": base, "code": _CODE}
    content = _parsed(text, RECIPES)
    recipes = _recipes(content)
    if name in recipes:
        if recipes[name] == item:
            return text
        what = f"lists {name} with other data, objective, base or code: {dict(recipes[name])}"
        raise RecipeError(str(RECIPES), what, f"choose another name, or remove it first: evergreen remove {name}")
    if not recipes:
        text = re.sub(r"^recipes: *\{\}", "recipes:", text, flags=re.MULTILINE)
    lines = "\n".join(
        [f"  {format_yaml_value(name)}:", *(f"    {key}: {format_yaml_value(path)}" for key, path in item.items())]
    )
    return _checked(_extended(text, lines), content | {"recipes": {**recipes, name: item}}, RECIPES)


def prefect_yaml_with_deployment(text: str, name: str, schedule: str) -> str:
    """Return prefect.yaml with a deployment of a recipe on a schedule at its end; the same text if it has this one.

    Raises:
        RecipeError: it has another deployment of this name, or nothing that deployments of the flow share.
    """
    content = _parsed(text, PREFECT)
    definitions = content.get("definitions")
    shared = definitions.get("retrain") if isinstance(definitions, Mapping) else None
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
    deployments = _deployments(content)
    for deployment in deployments:
        if isinstance(deployment, Mapping) and deployment.get("name") == name:
            if deployment in (item, earlier):
                return text
            fix = f"choose another name, or remove it first: evergreen remove {name}"
            raise RecipeError(str(PREFECT), f"has another deployment {name}", fix)
    lines = f"""
  - <<: *retrain
    name: {format_yaml_value(name)}
    description: {item["description"]}
    parameters:
      recipe: {format_yaml_value(name)}
    schedules:
      - slug: {_SLUG}
        cron: {format_yaml_value(schedule)}
        timezone: UTC"""
    return _checked(_extended(text, lines), content | {"deployments": [*deployments, item]}, PREFECT)


def read_text_or_none(path: Path) -> str | None:
    """Return the text of a file, None if there is none; a `RecipeError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), f"cannot be read: {error}", "save it as a text file in UTF-8") from error


def remove_recipe(name: str, *, yes: bool) -> None:
    """Remove a recipe's file, its item and its deployments, after asking. Runs and releases stay.

    Raises:
        RecipeError: no recipe can have this name, or there is nothing of this name.
    """
    if problem := recipe_name_problem(name):
        fix = "write the recipe's name, without params/ and .yaml"
        raise RecipeError("NAME", f"{name!a:.200} is no name: {problem}", fix)
    root = require_project_root()
    recipe = root / "params" / f"{name}.yaml"
    recipes, prefect = (read_text_or_none(root / path) or "" for path in (RECIPES, PREFECT))
    new_recipes = recipes_yaml_without_item(recipes, name)
    new_prefect, deployments = without_recipe_deployments(prefect, name)
    what = [f"the recipe {recipe}"] if recipe.is_file() else []
    what += ["its item in recipes.yaml"] if new_recipes != recipes else []
    what += [f"the deployment {deployment} in prefect.yaml" for deployment in deployments]
    if not what:
        recipe_names = sorted(path.stem for path in (root / "params").glob("*.yaml"))
        raise RecipeError(name, "no recipe, item or deployment has this name", f"recipes: {', '.join(recipe_names)}")
    print(f"This belongs to {name}:", *what, sep="\n  ")
    if not yes and not _confirm_removal():
        return
    write_text_atomically(root / PREFECT, new_prefect)
    write_text_atomically(root / RECIPES, new_recipes)
    recipe.unlink(missing_ok=True)
    print("Removed.")
    _say_what_stays(Artifacts(name, root), deployments)


def _confirm_removal() -> bool:
    if sys.stdin.isatty():
        return typer.confirm("Remove it?")
    print("Nothing was removed. To remove it, add --yes.")
    return False


def _say_what_stays(artifacts: Artifacts, deployments: Sequence[str]) -> None:
    if kept := [str(path) for path in (artifacts.run, artifacts.scratch) if path.exists()]:
        print(f"Kept: {', '.join(kept)}{', and what is published' if artifacts.receipt.exists() else ''}.")
    if deployments:
        commands = ", ".join(f"prefect deployment delete retrain/{deployment}" for deployment in deployments)
        print(f"If it is deployed, delete it on the Prefect server: {commands}")


def recipes_yaml_without_item(text: str, name: str) -> str:
    """Return recipes.yaml without the item of a recipe."""
    content = _parsed(text, RECIPES)
    others = {other: item for other, item in _recipes(content).items() if other != name}
    if len(others) == len(_recipes(content)):
        return text
    text = _without(text, RECIPES, name, content | {"recipes": others or None})
    return text if others else re.sub("^recipes:", "recipes: {}", text, flags=re.MULTILINE)  # DVC reads no empty value


def without_recipe_deployments(text: str, name: str) -> tuple[str, list[str]]:
    """Return prefect.yaml without the deployments of a recipe, and their names."""
    content, removed = _parsed(text, PREFECT), list[str]()
    rest = _deployments(content)
    for number, deployment in reversed([*enumerate(rest)]):
        parameters = deployment.get("parameters") if isinstance(deployment, Mapping) else None
        is_own = isinstance(parameters, Mapping) and parameters.get("recipe") == name
        if is_own and deployment.get("entrypoint") == _FLOW:
            removed.insert(0, str(deployment.get("name")))
            rest = [*rest[:number], *rest[number + 1 :]]
            text = _without(text, PREFECT, number, content | {"deployments": rest or None})
    return text, removed


def _without(text: str, path: Path, item: str | int, expected: Any) -> str:
    """Return a file without one item, given by name of a recipe or number of a deployment."""
    lines = text.splitlines(keepends=True)
    if isinstance(item, str):
        place = int(YAML().load(text)["recipes"].lc.key(item)[0])
    else:
        place = int(YAML().load(text)["deployments"].lc.item(item)[0])
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    end = place + 1
    for i in range(place + 1, len(lines)):  # deeper lines belong to it, comments that follow do not
        if indents[i] > indents[place] and lines[i].strip():
            end = i + 1
        elif lines[i].strip() and not lines[i].lstrip().startswith("#"):
            break
    if isinstance(item, int) and not lines[place - 1].strip():
        place -= 1
    return _checked("".join([*lines[:place], *lines[end:]]), expected, path)


def _checked(after: str, expected: Any, path: Path) -> str:
    """Return an edited text, if reading it gives what is expected."""
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


def _deployments(content: Any) -> list[Any]:
    found = content.get("deployments")
    return found if isinstance(found, list) else []


def _extended(text: str, lines: str) -> str:
    """Return a file with more lines at its end, where no later version of the project changes a line."""
    return "\n".join([text.rstrip("\n"), lines, ""])


def render_recipe_yaml(
    name: str, proposal: ObjectiveProposal, sample: RowSample, facts: ModelFacts | None, plan: RecipePlan
) -> str:
    """Return the recipe as YAML; the same arguments give the same text."""
    model = f"{facts.model_type} of {facts.size} parameters" if facts else "a small model from random weights"
    counts = ", ".join(f"{sample.estimated(split):,} {split}" for split in sample.rows)
    of = "" if sample.is_whole else f", of which {len(sample.rows['train']):,} training rows were looked at"
    notes = [f"#   - {note}" for note in plan.quality.notes()]
    head = [
        f"# {name}: learn {proposal.advice.meaning}, with {model}. Written by `evergreen new`; every value may be changed.",
        "#",
        f"#   evergreen check {name}      find mistakes in this recipe, in seconds",
        f"#   evergreen run {name}        run every stage that is out of date, and publish the model",
        "#",
        f"# The rows: {counts}{of}.{' What is in them:' if notes else ''}",
        *notes,
    ]
    texts = (head, *(_lines({key: section}) for key, section in plan.sections.items()))
    return "\n\n".join("\n".join(map(replace_unprintable_characters, lines)) for lines in texts) + "\n"


def _lines(keys: Keys, indent: str = "") -> Iterator[str]:
    """Yield keys with their values; a reason is behind its value, or above it where the line would be too long."""
    for key, value in keys.items():
        if key.startswith("#"):
            yield f"{indent}{key}"
        elif isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        else:
            choice = value if isinstance(value, AdvisedValue) else AdvisedValue(value)
            line = f"{indent}{key}: {format_yaml_value(choice.value)}"
            is_short = len(line) + len(choice.why) + 4 <= _WIDTH
            if choice.why and not is_short:
                yield f"{indent}# {choice.why}"
            yield f"{line}  # {choice.why}" if choice.why and is_short else line


def format_yaml_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return _format_float(value)
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED else _quote(value)
    if isinstance(value, Mapping):
        items = [f"{key}: {format_yaml_value(own)}" for key, own in value.items()]
        return f"{{{', '.join(items)}}}"
    return f"[{', '.join(map(format_yaml_value, value))}]" if isinstance(value, list) else str(value)


def _format_float(value: float) -> str:
    text = f"{value:.12g}"
    return re.sub(r"\.?0*e-0?", "e-", f"{value:.3e}") if 0 < value < 0.01 and len(text) > 4 else text


def _quote(text: str) -> str:
    """Return a text in quotes, with escapes for the characters that YAML does not allow."""
    known = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    return f'"{"".join(known.get(c, c if c.isprintable() else f"{chr(92)}U{ord(c):08x}") for c in text)}"'


def replace_unprintable_characters(line: str) -> str:
    """Return a line whose comment may quote rows: what ends a line, or is not allowed in YAML, is a space. Values have none of that."""
    return "".join(c if c.isprintable() else " " for c in line)

"""Find and read a recipe. An invalid recipe is one error with all of its problems, each with its line."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from params.foundation.errors import RecipeError
from params.problems import Key, Problem, list_problems, locate_in_recipe, most_similar, validation_problem
from params.schema import Recipe
from tasks.recipes.defaults import with_dependent_defaults

_FOLDER = Path("params")
_MAX_DEPTH = 50
_MAX_VALUES = 100_000
_MAX_NAME = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Document:
    """The content of a recipe file, with the line of every key."""

    path: Path
    content: dict[str, Any]
    tree: CommentedMap

    @property
    def recipe(self) -> dict[str, Any]:
        """The content of a recipe, with the defaults that depend on other keys."""
        return with_dependent_defaults(self.content, self.path.stem)

    def line(self, key: Key) -> int:
        """Return the line of `key`, or of its closest parent in the file. The first line is 1."""
        node: object = self.tree
        line = 0
        for part in key:
            if not isinstance(node, CommentedMap | CommentedSeq):
                break
            try:
                line = node.lc.key(part)[0] if isinstance(node, CommentedMap) else node.lc.item(part)[0]
                node = node[part]
            except (KeyError, IndexError, TypeError):
                break
        return line + 1

    def error(self, problems: Iterable[Problem]) -> RecipeError:
        """Return all `problems` as one error, in the order of the file."""
        ordered = sorted(problems, key=lambda problem: self.line(problem.key))
        lines = [f"{self.path}:{self.line(problem.key)}: {problem}" for problem in ordered]
        return RecipeError(str(self.path), list_problems(lines), "change each line as it says")


def find_recipe(recipe: str) -> Path:
    """Return the file of a recipe in params/ that is given by name (`default`) or by path (`params/default.yaml`).

    Raises:
        RecipeError: there is no such file, it is not in params/, or its name is too long or not safe in a command.
    """
    is_path = "/" in recipe or recipe.endswith((".yaml", ".yml"))
    path = Path(recipe) if is_path else _FOLDER / f"{recipe}.yaml"
    try:
        is_file = path.is_file()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise RecipeError(f"{recipe:.{_MAX_NAME}}", what, "write the name of a recipe in params/") from None
    if not is_file:
        raise _no_such_recipe(path)
    if path.resolve() != (_FOLDER / f"{path.stem}.yaml").resolve():
        what = "is not a .yaml file in params/, where DVC looks for recipes"
        raise RecipeError(str(path), what, f"move it to params/{path.stem}.yaml, and list it in recipes.yaml")
    if problem := recipe_name_problem(path.stem):
        raise RecipeError(str(path), problem, "rename it, for example with `-` for each space")
    return path


def recipe_name_problem(name: str) -> str:
    """Return why a recipe cannot have this name, which dvc.yaml puts into shell commands and paths; empty if it can."""
    if len(name) > _MAX_NAME:
        return f"the name of a recipe has at most {_MAX_NAME} characters, not {len(name)}"
    what = "the name of a recipe consists of a letter or digit, then letters, digits, `.`, `_` and `-`, all ASCII"
    return "" if _NAME.fullmatch(name) else what


def recipe_names_with_prefix(start: str) -> list[str]:
    """Return the names of the recipes in params/ that begin with a text, for a shell that completes it."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml") if path.stem.startswith(start))


def recipe_name(recipe: str) -> str:
    """Return the name of a recipe that is given by name or by path: the name of its file without the suffix."""
    return find_recipe(recipe).stem


def read_yaml_document(path: Path) -> Document:
    """Parse the YAML file at `path`.

    Raises:
        RecipeError: there is no such file, or it is not one YAML mapping in UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = YAML(typ="safe").load(text)  # stricter than YAML(): it knows no tags
        _check_size(content)
        tree = _load_with_lines(text)
    except (FileNotFoundError, IsADirectoryError):
        raise _no_such_recipe(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), f"cannot be read as text: {error}", "save it as a YAML file in UTF-8") from None
    except Exception as error:  # ruamel.yaml raises errors of many kinds, for example for 2020-99-99
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        said = str(error) if isinstance(error, YAMLError) else f"{type(error).__name__}: {error}"
        what = f"not valid YAML: {getattr(error, 'problem', None) or said}"
        fix = (
            "fix the syntax; a key may occur once in a mapping, no mapping merges itself, and unusual texts need quotes"
        )
        raise RecipeError(where, what, fix) from error
    if not isinstance(tree, CommentedMap):
        raise RecipeError(str(path), "holds no recipe", "write a YAML mapping; params/default.yaml is an example")
    return Document(path, content, tree)


@functools.lru_cache(maxsize=32)
def _load_with_lines(text: str) -> Any:
    return YAML().load(text)


def _check_size(content: object) -> None:
    """Refuse a content that would take too long to check; an alias counts as a copy of what it stands for."""
    values, found = [(content, 1)], 0
    while values:
        value, depth = values.pop()
        found += 1
        if depth > _MAX_DEPTH:
            raise YAMLError(f"nested more than {_MAX_DEPTH} levels deep, or an alias contains itself")
        if found > _MAX_VALUES:
            raise YAMLError(f"more than {_MAX_VALUES:,} values, counted with aliases")
        if isinstance(value, dict | list):
            values += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]


def parse(document: Document) -> tuple[Recipe | None, list[Problem]]:
    """Return the recipe in `document`, or None and its problems."""
    try:
        return Recipe.model_validate(document.recipe), []
    except pydantic.ValidationError as error:
        return None, [validation_problem(e, *locate_in_recipe(e["loc"])) for e in error.errors()]


def valid_sections(document: Document) -> dict[str, Any]:
    """Return the valid sections of `document`, so that they can be checked even if others are invalid.

    Unknown keys do not make a section invalid here.
    """
    found, filled = {}, document.recipe
    for name, field in Recipe.model_fields.items():
        section: Any = field.annotation
        if name not in filled and not field.is_required():
            found[name] = field.default
            continue
        with contextlib.suppress(pydantic.ValidationError):
            found[name] = pydantic.TypeAdapter(section).validate_python(filled.get(name), strict=True, extra="allow")
    return found


def load(path: Path) -> Recipe:
    """Return the recipe at `path`.

    Raises:
        RecipeError: it is invalid; the error lists every problem with its file:line, key and fix.
    """
    document = read_yaml_document(path)
    recipe, problems = parse(document)
    if recipe is None:
        raise document.error(problems)
    return recipe


def _no_such_recipe(path: Path) -> RecipeError:
    folder = _FOLDER if path.parent == Path() else path.parent  # the YAML files in the project's root are no recipes
    known = {p.stem: p for p in sorted(folder.glob("*.yaml"))}
    if close := most_similar(path.stem, known, cutoff=0.5):
        fix = f"did you mean `{known[close]}`?"
    elif known:
        fix = f"recipes in {folder}: {', '.join(known)}"
    else:
        fix = "check the path, or run this in the project's root, the folder that holds params/"
    return RecipeError(str(path), "there is no such recipe", fix)

"""Read a recipe: YAML in, a `Recipe` or every problem at once out.

A problem knows its line, its key, what is wrong and what to write instead. What only the upper layers can judge
(an objective's options, a transformers argument) they report as `Problem`s too, through the same `Document`.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pydantic
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from params.errors import EvergreenError, RecipeError
from params.schema import Recipe

Key = tuple[str | int, ...]
_FOLDER = Path("params")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a recipe."""

    key: Key
    """Path to the offending key, for example `("training", "learning_rate")`."""
    what: str
    """What is wrong, with the value that was found."""
    fix: str
    """What to write instead."""

    @classmethod
    def of(cls, error: EvergreenError, default: Key) -> Problem:
        """`error` as a problem of the key that it names, or of the key `default` if it names none."""
        if error.key:
            return cls(_parse_key(error.key), error.what, error.fix)
        return cls(default, f"{error.where}: {error.what}", error.fix)


@dataclass(frozen=True)
class Document:
    """A recipe file as it was written, with the line of every key."""

    path: Path
    content: dict[str, Any]
    tree: CommentedMap

    def line(self, key: Key) -> int:
        """Line of `key`, or of its nearest parent that is there; the first line is 1."""
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
        """All of `problems` as one error, in the order of the file."""
        ordered = sorted(problems, key=lambda p: self.line(p.key))
        lines = [
            f"{self.path}:{self.line(p.key)}: {'.'.join(map(str, p.key)) or 'recipe'}: {p.what}; {p.fix}"
            for p in ordered
        ]
        count = f"{len(ordered)} problem{'s' if len(ordered) != 1 else ''}"
        return RecipeError(str(self.path), f"{count} in the recipe\n" + "\n".join(lines), "mend the lines above")


def find_recipe(recipe: str) -> Path:
    """Return the file of a recipe that is given by name (`default`) or by path (`params/default.yaml`).

    Raises:
        RecipeError: there is no such file.
    """
    is_path = "/" in recipe or recipe.endswith((".yaml", ".yml"))
    path = Path(recipe) if is_path else _FOLDER / f"{recipe}.yaml"
    if not path.is_file():
        raise _no_such_recipe(path)
    return path


def recipe_name(recipe: str) -> str:
    """Return the name of a recipe in params/ that is given by name or by path.

    Raises:
        RecipeError: there is no such file, or it is not in params/.
    """
    path = find_recipe(recipe)
    if path.resolve() != (_FOLDER / f"{path.stem}.yaml").resolve():
        what = "is not a .yaml file in params/, where DVC looks for recipes"
        raise RecipeError(str(path), what, f"move it to params/{path.stem}.yaml, and list it at the top of dvc.yaml")
    return path.stem


def read(path: Path) -> Document:
    """Parse the YAML file at `path`.

    Raises:
        RecipeError: there is no such file, or it is not one YAML mapping in UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tree = YAML().load(text)
        content = YAML(typ="safe").load(text)  # stricter: it knows no tags
    except (FileNotFoundError, IsADirectoryError):
        raise _no_such_recipe(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), f"cannot be read as text: {error}", "give a YAML file in UTF-8") from None
    except YAMLError as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        what = (error.problem if isinstance(error, MarkedYAMLError) else None) or str(error)
        raise RecipeError(where, f"not valid YAML: {what}", "mend the syntax; each key may stand once") from None
    except (RecursionError, TypeError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else f"a key is no text: {error}"
        raise RecipeError(str(path), f"not valid YAML: {what}", "mend the syntax") from None
    if not isinstance(tree, CommentedMap):
        raise RecipeError(str(path), "holds no recipe", "a recipe is a YAML mapping; start from params/default.yaml")
    return Document(path, content, tree)


def parse(document: Document) -> tuple[Recipe | None, list[Problem]]:
    """The recipe in `document`, or None and what is wrong with it."""
    try:
        return Recipe.model_validate(document.content), []
    except pydantic.ValidationError as error:
        return None, [_problem(e) for e in error.errors()]


def valid_sections(document: Document) -> dict[str, Any]:
    """The sections of `document` that are sound by themselves, so that they can be looked into although others are not."""
    found = {}
    for name, field in Recipe.model_fields.items():
        section: Any = field.annotation
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(section)
        content = copy.deepcopy(document.content.get(name))
        for _ in range(2):  # the second time without the keys that do not belong there
            try:
                found[name] = adapter.validate_python(content, strict=True)
                break
            except pydantic.ValidationError as error:
                for extra in error.errors():
                    if extra["type"] == "extra_forbidden":
                        _remove(content, _locate((name, *extra["loc"]))[0][1:])
    return found


def load(path: Path) -> Recipe:
    """The recipe at `path`.

    Raises:
        RecipeError: with every problem that the schema finds, each with file:line, key, what and fix.
    """
    document = read(path)
    recipe, problems = parse(document)
    if recipe is None:
        raise document.error(problems)
    return recipe


def suggestion(name: str, known: Sequence[str], what: str = "keys") -> str:
    """A fix for a name that does not exist: the closest one that does, or all of them."""
    return _did_you_mean(name, known) or f"{what} here: {', '.join(known)}"


def _no_such_recipe(path: Path) -> RecipeError:
    if path.is_dir():
        folder, what = path, "is a folder, not a recipe"
    else:
        folder, what = path.parent, "there is no such recipe"
    if folder == Path():  # in the project's root are YAML files of other kinds
        folder = _FOLDER
    known = {p.stem: p for p in sorted(folder.glob("*.yaml"))}
    close = difflib.get_close_matches(path.stem, known, n=1, cutoff=0.5)
    if close:
        fix = f"did you mean `{known[close[0]]}`?"
    elif known:
        fix = f"recipes in {folder}: {', '.join(known)}"
    elif folder == _FOLDER and not folder.is_dir():
        fix = "run this in the project's root, the folder that holds params/"
    else:
        fix = "check the path"
    return RecipeError(str(path), what, fix)


def _parse_key(text: str) -> Key:
    return tuple(int(name) if name.isdigit() else name for name in text.split("."))


def _did_you_mean(name: str, known: Sequence[str]) -> str | None:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None


def _problem(error: Any) -> Problem:
    """A pydantic error in our words. The tags of discriminated unions, which pydantic puts into `loc`, are left out."""
    key, model = _locate(error["loc"])
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        known = [name for name in model.model_fields if name not in key] if model else []
        return Problem(key, "no such key", suggestion(str(key[-1]), known))
    if kind == "missing":
        return Problem(key, "is missing", f"add `{key[-1]}:`{_meaning(model, key)}")
    if kind == "value_error":
        return Problem(key, str(context["error"]), "choose one" if "either" in str(context["error"]) else "mend it")
    if kind == "union_tag_invalid":
        tags = context["expected_tags"]
        return Problem((*key, "kind"), f"there is no kind {context['tag']!r}", f"use one of {tags}")
    if kind == "union_tag_not_found":
        return Problem(key, "does not say its `kind`", "add `kind:`")
    message = error["msg"][0].lower() + error["msg"][1:]
    if kind == "model_type":
        message = "input should be a mapping of keys"
    return Problem(key, f"{message}, found {error['input']!r}", f"write a valid value{_meaning(model, key)}")


def _meaning(model: type[pydantic.BaseModel] | None, key: Key) -> str:
    field = model.model_fields.get(str(key[-1])) if model and key else None
    return f" ({field.description.splitlines()[0]})" if field and field.description else ""


def _locate(loc: Sequence[str | int]) -> tuple[Key, type[pydantic.BaseModel] | None]:
    """The key in the file that pydantic's `loc` means, and the section that holds the last part of it."""
    key: list[str | int] = []
    section: type[pydantic.BaseModel] | None = Recipe
    holder = section
    choices: list[type[pydantic.BaseModel]] = []
    tagged = False
    for part in loc:
        holder = section or holder
        if tagged:
            section = next(m for m in choices if get_args(m.model_fields["kind"].annotation) == (part,))
            tagged = False
            continue
        field = section.model_fields.get(str(part)) if section else None
        key.append(part)
        if field is not None:
            choices = _sections(field.annotation)
            section = choices[0] if choices else None
            tagged = field.discriminator is not None
    return tuple(key), holder


def _remove(content: Any, key: Key) -> None:
    for part in key[:-1]:
        content = content[part]
    del content[key[-1]]


def _sections(annotation: object) -> list[type[pydantic.BaseModel]]:
    """The section classes in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _sections(argument)]

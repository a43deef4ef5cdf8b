"""What is wrong with a recipe: a problem has a key, what is wrong and what to write instead.

Who reads the file of a recipe adds the line (tasks/recipes). Others check what the schema cannot, for example the options of an
objective, and report it as problems, too.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import pydantic

from params.foundation.errors import EvergreenError, RecipeError, see_limits
from params.schema import Recipe

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a recipe."""

    key: Key  # path to the offending key, for example `("training", "learning_rate")`
    what: str  # what is wrong, with the value that was found
    fix: str  # what to write instead

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.key)) or 'recipe'}: {self.what}; {self.fix}"

    @classmethod
    def of(cls, error: EvergreenError, default: Key) -> Problem:
        """Return `error` as a problem of the key that it names, or of `default` if it names none."""
        if error.key:
            key = tuple(int(part) if part.isdigit() else part for part in error.key.split("."))
            return cls(key, error.what, error.fix)
        return cls(default, f"{error.where}: {error.what}", error.fix)


def problems_error(problems: Iterable[Problem]) -> RecipeError:
    """Return `problems` as one error, without the lines of the recipe's file."""
    return RecipeError("recipe", list_problems([str(problem) for problem in problems]), "change each key as it says")


def list_problems(problems: Sequence[str]) -> str:
    """Return the problems as lines below their number."""
    return "\n".join([f"{len(problems)} problem{'s' if len(problems) != 1 else ''} in the recipe", *problems])


def suggestion(name: str, known: Sequence[str], what: str = "keys") -> str:
    """Return a fix for a name that does not exist: the most similar one in `known`, or all of them."""
    close = most_similar(name, known)
    return f"did you mean `{close}`?" if close else f"{what} here: {', '.join(known)}"


def most_similar(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of the known names that is spelled most alike; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def validation_problem(error: Any, key: Key, model: type[pydantic.BaseModel] | None) -> Problem:
    """Return an error of pydantic about a key as a problem; `model` is the class of the section that holds the key."""
    kind, context = error["type"], error.get("ctx", {})
    limits = see_limits(str(key[0]) if len(key) > 1 else "")
    if kind == "extra_forbidden":
        similar = _similar_key(key, model)
        return Problem(key, "no such key", similar if similar.startswith("did") else similar + limits)
    if kind == "missing":
        return Problem(key, "is missing", f"add `{key[-1]}:`{_meaning(model, key)}")
    if kind == "conflict":
        return Problem(key, context["what"], context["fix"])
    if kind == "union_tag_invalid":
        tags = context["expected_tags"]
        return Problem((*key, "kind"), f"there is no kind {context['tag']!r}", f"use one of {tags}{limits}")
    if kind == "union_tag_not_found":
        return Problem(key, "has no `kind`", f"add `kind:`{limits}")
    message = error["msg"][0].lower() + error["msg"][1:]
    if kind == "model_type":
        message = "input should be a mapping of keys"
    return Problem(key, f"{message}, found {error['input']!r}", f"write a valid value{_meaning(model, key)}")


def _similar_key(key: Key, model: type[pydantic.BaseModel] | None) -> str:
    """Return which key may be meant by one that does not exist: one of the same section, or of another."""
    known = [name for name in model.model_fields if name not in key] if model else []
    fix = suggestion(str(key[-1]), known)
    if fix.startswith("did"):
        return fix
    for name, field in Recipe.model_fields.items():
        if any(key[-1] in section.model_fields for section in _sections(field.annotation)):
            return f"did you mean `{name}.{key[-1]}`?"
    return fix


def _meaning(model: type[pydantic.BaseModel] | None, key: Key) -> str:
    """Return the first line of the key's docstring, if its class has source code."""
    for section in model.__mro__ if model and key else ():
        if key[-1] not in vars(section).get("__annotations__", {}):
            continue
        with contextlib.suppress(OSError):
            body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0].body  # type: ignore[attr-defined]
            for field, after in pairwise(body):
                is_key = isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == key[-1]
                if is_key and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    return f" ({inspect.cleandoc(str(after.value.value)).splitlines()[0]})"
    return ""


def locate_in_recipe(loc: Sequence[str | int]) -> tuple[Key, type[pydantic.BaseModel] | None]:
    """Return the key in the file for pydantic's `loc`, and the class of the section that holds the key.

    `loc` also holds the tags of discriminated unions, which are no keys.
    """
    key: list[str | int] = []
    section: type[pydantic.BaseModel] | None = Recipe
    holder, tags, is_name = section, dict[str | int, type[pydantic.BaseModel]](), False
    for part in loc:
        holder = section or holder
        if part in tags and not is_name:
            section, tags = tags[part], {}
            continue
        key.append(part)
        if is_name:  # of one section among several
            is_name = False
        elif section and (field := section.model_fields.get(str(part))):
            choices = _sections(field.annotation)
            section = choices[0] if choices else None
            tags = {get_args(m.model_fields["kind"].annotation)[0]: m for m in choices} if len(choices) > 1 else {}
            is_name = bool(tags) and "dict[" in str(field.annotation)
    return tuple(key), holder


def _sections(annotation: object) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _sections(argument)]

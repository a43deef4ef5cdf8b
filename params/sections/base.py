"""What the sections of a recipe are made of: their base class, types of values, and errors of keys that do not fit together."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic_core import PydanticCustomError

MAX_INT = 2**31 - 1
PositiveInt = Annotated[int, Field(gt=0, le=MAX_INT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_INT)]
Seconds = Annotated[float, Field(gt=0.0, le=31_536_000.0)]
"""A time limit of at most a year; Python's timers fail above a few hundred years."""
Hours = Annotated[float, Field(ge=0.0, le=8_760.0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
IMPORTABLE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
Importable = Annotated[str, Field(pattern=IMPORTABLE)]
"""A Python object, as `package.module:name`."""


Direction = Literal["min", "max"]
"""Whether the smallest or the largest value of a metric is best."""


class Section(BaseModel):
    """A section of a recipe: frozen, without unknown keys, strict about types, and with finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def conflict_error(what: str, fix: str) -> PydanticCustomError:
    """Return the error that a section raises when its keys do not fit together."""
    return PydanticCustomError("conflict", "{what}", {"what": what, "fix": fix})


def _whole_steps(value: float) -> float:
    if value >= 1 and value != int(value):
        what = f"{value} is neither a number of steps nor a share of them"
        raise conflict_error(what, "write a whole number, or one below 1")
    return int(value) if value >= 1 else value


Interval = Annotated[
    float, Field(gt=0.0, le=MAX_INT), AfterValidator(_whole_steps), PlainSerializer(lambda value: value)
]
"""Optimizer steps, or a share of all steps."""
_REPO_NAME = re.compile(r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_RESERVED_OWNERS = frozenset({"api", "buckets", "datasets", "kernels", "models", "spaces", "uploads"})


def repo_id_problem(repo_id: str) -> str | None:
    """Return why the Hub or its client refuses `repo_id`, or None; an owner is not required."""
    owner, _, name = repo_id.rpartition("/")
    for part in filter(None, (owner, name)):
        if not _REPO_NAME.fullmatch(part):
            return f"{part!a} is not 1 to 96 letters, digits, `-`, `_` and `.`, starting and ending with no `-` or `.`"
    if "--" in repo_id or ".." in repo_id:
        return "it contains `--` or `..`"
    if repo_id.endswith(".git") or owner.endswith(".git"):
        return "a name ends in `.git`"
    if owner.lower() in _RESERVED_OWNERS:
        return f"`{owner}` is not an owner, but a page of the Hub"
    return None if name else "it has no name"


def check_repo_id(repo_id: str) -> str:
    """Return `repo_id`; refuse one that the Hub refuses."""
    if problem := repo_id_problem(repo_id):
        raise conflict_error(f"the Hub refuses {repo_id!a}: {problem}", "write another `owner/name`")
    return repo_id


def require_one(section: Section, first: str, second: str) -> None:
    """Refuse a section that sets both of two keys, or neither."""
    lacks_first = getattr(section, first) is None
    if lacks_first == (getattr(section, second) is None):
        fix = "add one of them" if lacks_first else "remove one of them"
        raise conflict_error(f"needs exactly one of `{first}` and `{second}`", fix)


class Call(Section):
    """A Python function or class, and the arguments to call it with."""

    name: Importable
    """`package.module:name`."""
    arguments: dict[str, Any] = {}
    """Keyword arguments, besides those that the pipeline passes."""


def from_text(key: str) -> BeforeValidator:
    """Let a text stand for a section that gives only this key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


CallOrName = Annotated[Call, from_text("name")]
"""`package.module:name`, or `{name: package.module:name, arguments: {...}}`."""

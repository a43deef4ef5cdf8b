"""What a user asks `evergreen new` for, and how it asks back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params import EvergreenError, RecipeError
from params.foundation.errors import see_limits

NEW_MODEL = "new"
"""`--model new`: a small model from random weights."""
COLUMN_FLAGS = (
    *("text", "text-pair", "label", "labels", "score", "spans"),
    *("prompt", "completion", "messages", "chosen", "rejected"),
    *("question", "context", "answers", "choices", "liked"),
)
"""The flags that name a column."""


OPTION_FLAGS = {"source_language": "--source-language", "target_language": "--target-language"}
"""Options of objectives that have flags of their own; others are given as `--option KEY=VALUE`."""


def option_flag(name: str) -> str:
    """Return the flag that gives an option of the objective, as a message names it."""
    return OPTION_FLAGS.get(name, f"--option {name}")


def read_options(given: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--option KEY=VALUE`, read as in a recipe; RecipeError if one of them has another form."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            what = f"{text!r} is not a key of the objective with its value"
            raise RecipeError("--option", what, "write it as KEY=VALUE, such as `--option beta=0.2`")
        try:
            found[name] = YAML(typ="safe").load(value)
        except YAMLError as error:
            raise RecipeError(f"--option {name}", f"{value!r} is not YAML", "put text into quotes") from error
    return found


@dataclass(frozen=True)
class NewRecipeRequest:
    """The arguments of `evergreen new`; None stands for a flag that is not given."""

    name: str
    data: str
    query: str | None = None
    test: str | None = None
    validation: str | None = None
    model: str | None = None
    objective: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns that the user names, by flag: `{"label": "category"}`."""
    repo_id: str | None = None
    schedule: str = "0 3 * * *"
    may_ask: bool = False
    """Whether somebody at a terminal can answer; else an open question is an error that names the flag."""
    max_quarantined: float | None = None
    """The share of rows that may be set aside."""
    corpus: str | None = None
    """File or glob of the documents that the queries search."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the objective that the user gives, by name: `{"source_language": "en_XX"}`."""

    @property
    def published_repo_id(self) -> str:
        return self.repo_id or f"evergreen/{self.name}"

    def choose(self, flag: str, what: str, options: Mapping[str, str], fix: str = "") -> str:
        """Return one of `options`, each with what speaks for it; the first is the proposal.

        RecipeError if nobody can choose; `fix` is what else can be done then.
        """
        first, *others = options
        if not others:
            return first
        listed = [f"{option} ({reason})" if reason else option for option, reason in options.items()]
        if not self.may_ask:
            more = see_limits("objective") if flag in ("--text", "--label") else ""  # not both of them
            fix = f"add {' or '.join(f'{flag} {shlex.quote(option)}' for option in options)}{fix}{more}"
            raise RecipeError(flag, f"{what} is not clear: {', '.join(listed)}", fix)
        print(f"\n{what}:", *listed, sep="\n  ")
        while (answer := str(typer.prompt(f"Which one? {flag}", default=first))) not in options:
            print(f"Type one of: {', '.join(options)}")
        return answer

    def confirm(self, question: str, error: EvergreenError) -> None:
        """Raise the error unless somebody at a terminal, who is told what is wrong, wants to go on."""
        if self.may_ask:
            print(f"\n{error.where}: {error.what}")
        if not self.may_ask or not typer.confirm(question):
            raise error

    def ask(self, flag: str, question: str, fix: str) -> str:
        """Return what the user types; RecipeError if there is nobody to ask."""
        if not self.may_ask:
            raise RecipeError(flag, f"is needed: {question[0].lower()}{question[1:]}", fix)
        return str(typer.prompt(f"\n{question}"))

"""What a user asks `evergreen new` for, and how it asks back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import typer

from params import RecipeError

NEW_MODEL = "new"
"""`--model new`: a small model from random weights."""
COLUMN_FLAGS = ("text", "label", "spans", "prompt", "completion", "messages", "chosen", "rejected")
"""The flags that name a column."""


@dataclass(frozen=True)
class Request:
    """The arguments of `evergreen new`; None stands for a flag that is not given."""

    name: str
    data: str
    query: str | None = None
    test: str | None = None
    validation: str | None = None
    model: str | None = None
    objective: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """The columns that the user names, by flag: `{"label": "category"}`."""
    repo_id: str | None = None
    schedule: str = "0 3 * * *"


@dataclass(frozen=True)
class Asker:
    """Asks on a terminal; elsewhere an open question is an error that names the flag."""

    interactive: bool

    @classmethod
    def of(cls, *, yes: bool) -> Asker:
        """Return one that asks, if somebody is there to answer, and has not said --yes."""
        return cls(interactive=not yes and sys.stdin.isatty() and sys.stdout.isatty())

    def choose(self, flag: str, what: str, options: Mapping[str, str]) -> str:
        """Return one of `options`, each with what speaks for it; the first is the proposal. Without a choice, nobody is asked.

        Raises:
            RecipeError: there are several, and nobody to ask.
        """
        first, *others = options
        if not others:
            return first
        listed = [f"{option} ({reason})" if reason else option for option, reason in options.items()]
        if not self.interactive:
            fix = f"add {flag}, for example `{flag} {first}`"
            raise RecipeError(flag, f"{what} is not clear: {', '.join(listed)}", fix)
        print(f"\n{what}:", *listed, sep="\n  ")
        while (answer := str(typer.prompt(f"Which one? {flag}", default=first))) not in options:
            print(f"Type one of: {', '.join(options)}")
        return answer

    def text(self, flag: str, question: str, fix: str) -> str:
        """Return what the user types.

        Raises:
            RecipeError: there is nobody to ask.
        """
        if not self.interactive:
            raise RecipeError(flag, f"is needed: {question[0].lower()}{question[1:]}", fix)
        return str(typer.prompt(f"\n{question}"))

"""Prompts that are made of columns, as an option of an objective says it (column_template)."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from params import Problem
from params.sections.base import Section
from trainer.column_template import column_or_template, names_columns, parse_prompt_template
from trainer.objectives.bases.rows import PromptForm

ColumnNames = Annotated[
    list[str],
    BeforeValidator(lambda given: [*column_or_template(given).columns] if isinstance(given, str) else given),
]
"""What an option names: a column, or several as a list or a template."""


def find_answers_in_prompt(options: Section, prompt: str, *answers: str) -> Iterator[Problem]:
    """Yield what is wrong if a template, the option `prompt`, names the column of an answer: the model would copy it."""
    template = getattr(options, prompt)
    for name in (getattr(options, answer) for answer in answers) if names_columns(template) else ():
        if name in column_or_template(template).columns:
            what = f"names `{name}`, the column of an answer: the model would read what it has to write"
            yield Problem(("objective", prompt), what, f"remove {{{name}}}, or name another column of answers")


def _check_option(text: str) -> str:
    column_or_template(text)
    return text


def _check_template(text: str) -> str:
    parse_prompt_template(text)
    return text


ColumnOrTemplate = Annotated[str, AfterValidator(_check_option)]
Template = Annotated[str, AfterValidator(_check_template)]


def form_around_text(text: str, *, after: str = "", is_chat: bool = False) -> PromptForm:
    """Return what stands around a text that is put to a model in place of the first of its template's columns.

    The others are left out. `text` is from a release, which may say anything: nothing is formatted, and what is no template counts
    as a column.
    """
    try:
        found = [(literal, name) for literal, name, *_ in string.Formatter().parse(text)]
    except ValueError:
        found = []
    places = [i for i, (_, name) in enumerate(found) if name is not None]
    if not places:
        return PromptForm(after=after, is_chat=is_chat)
    before = "".join(literal for literal, _ in found[: places[0] + 1])
    end = "".join(literal for literal, _ in found[places[-1] + 1 :]) + after
    return PromptForm(before, end, is_chat, text if len(places) > 1 else "")

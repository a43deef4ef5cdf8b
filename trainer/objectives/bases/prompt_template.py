r"""Prompts that are made of columns: `{instruction}\n\n{input}`.

A column that is missing or blank in a row is left out, and with it the text between the column before it and itself. If a prompt then
would begin with white space, it begins behind that. `{{` and `}}` stand for braces. Values are put in as they are: no attributes,
formats or widths.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from params import Problem
from params.sections.base import Section
from trainer.objectives.bases.rows import ColumnKind, PromptForm, Row


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt, or the source of another text, as a recipe says it: one column, or a template of columns."""

    parts: tuple[tuple[str, str], ...]
    """The columns, each behind the text between the column before and itself."""
    end: str = ""
    """The text behind the last column."""

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """The columns, and what each holds: of several, any may be blank."""
        names = dict.fromkeys(name for _, name in self.parts)
        return dict.fromkeys(names, "optional" if len(names) > 1 else "string")

    def fill(self, row: Row) -> str:
        """Return the prompt of a row."""
        return "".join(self._pieces(row)) + self.end

    def values(self, row: Row) -> str:
        """Return what the columns hold that the prompt is made of, whatever stands around it."""
        return "\n".join(str(row[name]) for name in sorted(self.columns) if not _is_blank(row.get(name)))

    def _pieces(self, row: Row) -> Iterator[str]:
        left_out = begun = False
        for before, name in self.parts:
            if len(self.parts) > 1 and _is_blank(row.get(name)):
                left_out = True
                continue
            yield before.lstrip() if left_out and not begun else before
            yield str(row[name])
            begun = True


def _is_blank(value: Any) -> bool:
    return value is None or not str(value).strip()


def names_columns(text: str) -> bool:
    """Whether the value of an option is a template, and not one column."""
    return "{" in text or "}" in text


@lru_cache
def column_or_template(text: str) -> PromptTemplate:
    """Return what an option names: one column, or a template; ValueError as of `parse_prompt_template`."""
    return parse_prompt_template(text) if names_columns(text) else PromptTemplate((("", text),))


ColumnNames = Annotated[
    list[str],
    BeforeValidator(lambda given: [*column_or_template(given).columns] if isinstance(given, str) else given),
]
"""What an option names: a column, or several as a list or a template."""


@lru_cache
def parse_prompt_template(text: str) -> PromptTemplate:
    """Return a template; ValueError if braces hold anything else than columns, do not match, or if there are none."""
    try:
        found = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"braces do not match ({error}): write {{{{ for a literal brace") from error
    parts, before = [], ""
    for literal, name, form, conversion in found:
        before += literal
        if name is None:
            continue
        if form or conversion or not name.replace(" ", "_").replace("-", "_").isidentifier():
            whole = f"{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}"
            raise ValueError(f"{{{whole}}} is not a column name: write {{column}}, and {{{{ for a literal brace")
        parts.append((before, name))
        before = ""
    if not parts:
        raise ValueError("it names no column, so all rows would have the same prompt: name one as {column}")
    return PromptTemplate(tuple(parts), before)


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

r"""Texts that are made of columns: `{instruction}\n\n{input}`.

A column that is missing or blank in a row is left out, and with it the text between the column before it and itself. If a text then
would begin with white space, it begins behind that. `{{` and `}}` stand for braces. Values are put in as they are: no attributes,
formats or widths. Prompts are made so, and columns of a source.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt, or the source of another text, as a recipe says it: one column, or a template of columns."""

    parts: tuple[tuple[str, str], ...]
    """The columns, each behind the text between the column before and itself."""
    end: str = ""
    """The text behind the last column."""

    @property
    def columns(self) -> Mapping[str, Literal["string", "optional"]]:
        """The columns, and what each holds: of several, any may be blank."""
        names = dict.fromkeys(name for _, name in self.parts)
        return dict.fromkeys(names, "optional" if len(names) > 1 else "string")

    def fill(self, row: Mapping[str, Any]) -> str:
        return "".join(self._pieces(row)) + self.end

    def values(self, row: Mapping[str, Any]) -> str:
        """Return what the columns hold that the prompt is made of, whatever stands around it."""
        return "\n".join(str(row[name]) for name in sorted(self.columns) if not _is_blank(row.get(name)))

    def _pieces(self, row: Mapping[str, Any]) -> Iterator[str]:
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

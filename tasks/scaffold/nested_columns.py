"""Columns that hold lists or records with a meaning of their own, such as spans, conversations, and answers with their places."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tasks.scaffold.look import USUAL_NAMES, SampledColumn, columns_named, most
from trainer.objectives.bases.answer_spans import looks_like_answers

NESTED: Final = ("spans", "messages", "answers", "choices")
"""Flags of `evergreen new` that name such columns."""
_NUMBERED_CHOICE: Final = re.compile(r"(ending|choice|option|answer|opt|sol)_?(\d|[a-e])")
"""Names of columns with one of several choices each."""


def find_nested_columns(flag: str, columns: Mapping[str, SampledColumn]) -> list[SampledColumn]:
    """Return the columns that a flag may name; of columns with a choice each, one whose name is a template of them."""
    if flag == "choices":
        usual = columns_named(columns, USUAL_NAMES[flag])
        lists = [c for c in usual if c.kind == "list" and all(isinstance(one, str) for one in c.items)]
        numbered = [c for name, c in columns.items() if _NUMBERED_CHOICE.fullmatch(name.lower())]
        numbered = [c for c in numbered if c.kind in ("text", "empty")]
        return lists or ([join_columns(numbered)] if len(numbered) > 1 else [])
    if flag == "answers":
        hold = [c for c in columns.values() if any(map(looks_like_answers, c.filled))]
        return [c for c in hold if most(lambda value: value == [] or looks_like_answers(value), c.filled)]
    return [c for c in columns.values() if c.kind == flag]


def join_columns(columns: Sequence[SampledColumn]) -> SampledColumn:
    """Return several columns as one, whose name is a template of them."""
    return SampledColumn(" ".join(f"{{{column.name}}}" for column in columns), [])

"""Which columns of a sample can be what a flag of `evergreen new` names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

from tasks.scaffold.forms import RowForm, feedback_columns, find_row_forms
from tasks.scaffold.look import Kind, Row, RowSample, SampledColumn, columns_named, most
from tasks.scaffold.usual_names import RELEVANCE, SYSTEM, USUAL_NAMES
from trainer import objectives
from trainer.column_template import column_or_template
from trainer.objectives.advice.base import NewRecipeAdvice
from trainer.objectives.bases.spans.answer_spans import looks_like_answers

NESTED: Final = ("spans", "messages", "answers", "choices")
"""Flags of `evergreen new` that name such columns."""
_NUMBERED_CHOICE: Final = re.compile(r"(ending|choice|option|answer|op|opt|sol)_?(\d|[a-e])|[a-e]")
"""Names of columns with one of several choices each."""
_NUMBERED_NEGATIVE: Final = re.compile(r"negative_?\d+")
"""Names of columns with one of several negatives each, as sentence-transformers' `mine_hard_negatives` writes them."""


def proposable_objectives() -> dict[str, NewRecipeAdvice]:
    """Return the objectives that can be proposed, in the order in which those that fit as well are."""
    found = {name: cls.advice for name, cls in objectives.objective_classes().items()}
    known = {name: advice for name, advice in sorted(found.items()) if isinstance(advice, NewRecipeAdvice)}
    return dict(sorted(known.items(), key=lambda item: item[1].place))


def are_texts(column: SampledColumn) -> bool:
    """Whether a column holds lists of nothing but texts."""
    return column.kind == "list" and all(isinstance(one, str) for one in column.items)


def find_usual_columns(sample: RowSample, flag: str) -> list[SampledColumn]:
    """Return the columns with a usual name for a flag, most usual first; of several negatives, one whose name is a template of them.

    Prompts come before columns that cannot be any by what they hold: the same in all rows, or names, such as those of sources.
    """
    found = columns_named(sample.columns, USUAL_NAMES[flag])
    if flag == "prompt":
        return sorted(found, key=_asks_nothing)
    return found or (_find_negatives(sample.columns) if flag == "rejected" else [])


@lru_cache(maxsize=1)
def list_row_forms(sample: RowSample) -> list[RowForm]:
    """Return what is special about the form of the rows."""
    return list(find_row_forms(sample.columns))


def _asks_nothing(column: SampledColumn) -> bool:
    are_names = column.is_label and not column.has_spaces and column.name.lower() not in ("query", "question")
    return column.kind == "empty" or column.is_incidental or are_names


def find_lead(sample: RowSample, prompt: str, read: Collection[str]) -> list[str]:
    """Return the columns that stand before a prompt, and are not `read` yet: what the system says, and a prompt that all rows have in common."""
    common = [c for c in find_usual_columns(sample, "prompt") if c.distinct == 1]
    found = {c.name: c for c in (*columns_named(sample.columns, SYSTEM), *common) if c.kind == "text" and c.has_spaces}
    return [name for name in found if name != prompt and name not in read]


def find_candidates(flag: str, sample: RowSample, chosen: Mapping[str, str]) -> list[SampledColumn]:
    """Return the columns that can be what a flag names, beside those that are `chosen` for others, by flag."""
    if flag in NESTED:
        return _find_nested(flag, sample.columns)
    columns = _columns_beside(chosen, sample)
    match flag:
        case "text":
            found = _find_texts(sample, columns)
        case "labels":
            found = _find_label_sets(sample, columns)
        case "label":
            found = _find_labels(sample, columns, chosen)
        case "score":
            found = _find_scores(columns, chosen)
        case "liked":
            found = feedback_columns(sample.columns)
        case "rejected":
            found = _find_negatives(sample.columns) or _find_parts(flag, sample, chosen)
        case _:
            found = _find_parts(flag, sample, chosen)
    return found


def _columns_beside(chosen: Mapping[str, str], sample: RowSample) -> list[SampledColumn]:
    taken = {name for own in chosen.values() for name in columns_in(own, sample)}
    return [c for c in sample.columns.values() if c.name not in taken]


def _find_labels(sample: RowSample, columns: Sequence[SampledColumn], chosen: Mapping[str, str]) -> list[SampledColumn]:
    """Return the columns of one label; without a text that is chosen, none that is the only one that can be the text."""
    has_text = not chosen.keys().isdisjoint({"text", "context"})
    texts = [] if has_text else find_candidates("text", sample, chosen)
    alone = texts if len(texts) == 1 else []
    return [c for c in columns if c not in alone and (c.is_target or _names_choices(c, sample))]


def _find_scores(columns: Sequence[SampledColumn], chosen: Mapping[str, str]) -> list[SampledColumn]:
    """Return the columns of numbers; of a document for a query, its grade: beside it may be scores of a search."""
    found = [c for c in columns if c.says_numbers and not c.is_id]
    grades = [c for c in found if c.name.lower() in RELEVANCE] if "prompt" in chosen else []
    return grades or found


def _find_texts(sample: RowSample, columns: Sequence[SampledColumn]) -> list[SampledColumn]:
    """Return the columns with texts that are neither labels nor names, longest texts first."""
    usual = find_usual_columns(sample, "text")
    texts = [c for c in columns if _may_be_text(c, usual)]
    tests = (_is_text_alone, lambda c: not c.is_label, _may_be_text_by_name)
    found = next(filter(None, ([*filter(test, texts)] for test in tests)), [])
    return sorted([c for c in found if c.has_spaces] or found, key=lambda c: -c.mean_characters)


def _may_be_text(column: SampledColumn, usual: Sequence[SampledColumn]) -> bool:
    """Whether a column holds texts, or numbers under a usual name of texts, and does not only say which row it is."""
    is_said = column.has_spaces and column in usual  # such as: open notes.txt
    if column.is_place_or_time and not is_said:
        return False
    is_number_read_as_text = column.is_numeric and column.can_be_text and column in usual
    is_text = column.kind == "text" or is_number_read_as_text
    return is_text and not (column.is_id and column.names_rows)


def _is_text_alone(column: SampledColumn) -> bool:
    """Whether a column of texts can be neither labels nor names."""
    is_named_label = column.name.lower() in USUAL_NAMES["label"]
    may_be_label = column.is_label and (is_named_label or not column.has_spaces)
    return not column.is_id and not may_be_label


def _may_be_text_by_name(column: SampledColumn) -> bool:
    """Whether a column holds texts of several words, or has no usual name of labels."""
    return column.has_spaces or column.name.lower() not in USUAL_NAMES["label"]


def _find_label_sets(sample: RowSample, columns: Sequence[SampledColumn]) -> list[SampledColumn]:
    """Return the columns with several labels of each row, or the columns that say yes or no as one, whose name is a template."""
    every, special = list(sample.columns.values()), {form.column for form in list_row_forms(sample)}
    special |= {c.name for c in _find_negatives(sample.columns)}
    found = [c for c in columns if c.name not in special and c.has_label_sets and not _is_parallel(c, every)]
    marked = [c for c in columns if c.says_yes_or_no]
    has_label = any(c.is_label for c in find_usual_columns(sample, "label"))
    return found or ([_joined(marked)] if len(marked) > 1 and not has_label else [])


def _find_parts(flag: str, sample: RowSample, chosen: Mapping[str, str]) -> list[SampledColumn]:
    """Return the columns with a part of a row, such as a prompt: those with a usual name, or else all that hold texts."""
    kinds: set[Kind] = {"text"}
    if any(flag in advice.conversations for advice in proposable_objectives().values()):
        kinds.add("messages")
    usual = [c for c in find_usual_columns(sample, flag) if c.kind != "empty"]
    by_name = [c for c in usual if _can_be_part(c, kinds)]
    if by_name or (flag == "completion" and usual):  # an answer that is a record, say: another text is none
        return by_name
    questions = _find_questions(sample, chosen) if flag == "context" else []
    return questions or _find_other_texts(flag, sample, kinds)


def _can_be_part(column: SampledColumn, kinds: Collection[Kind]) -> bool:
    return column.kind in kinds or column.can_be_text or column.is_numeric


def _find_questions(sample: RowSample, chosen: Mapping[str, str]) -> list[SampledColumn]:
    """Return the columns of questions that choices may answer."""
    usual = find_usual_columns(sample, "question")
    return [c for c in usual if c.kind == "text" and c.name not in chosen.values()]


def _find_other_texts(flag: str, sample: RowSample, kinds: Collection[Kind]) -> list[SampledColumn]:
    """Return the columns that hold texts, beside those with a usual name of the better or the worse answer."""
    named = [own for own in ("chosen", "rejected") if own != flag]
    other = {c.name for own in named for c in find_usual_columns(sample, own)}
    found = [c for c in sample.columns.values() if c.kind in kinds and c.name not in other]
    return [c for c in found if not (c.is_incidental or c.not_numbers)]


def _is_parallel(column: SampledColumn, columns: Sequence[SampledColumn]) -> bool:
    """Whether another column has lists of the same lengths, as words and their tags have."""
    others = [one for one in columns if one is not column and one.kind == column.kind == "list"]
    return any([*map(len, one.filled)] == [*map(len, column.filled)] for one in others)


def _find_choices(columns: Mapping[str, SampledColumn]) -> list[SampledColumn]:
    lists = [*filter(are_texts, columns_named(columns, USUAL_NAMES["choices"]))]
    numbered = [c for name, c in columns.items() if _NUMBERED_CHOICE.fullmatch(name.lower())]
    numbered = [c for c in numbered if c.kind in ("text", "empty")]
    return lists or ([_joined(numbered)] if len(numbered) > 1 else [])


def _find_nested(flag: str, columns: Mapping[str, SampledColumn]) -> list[SampledColumn]:
    """Return the columns that a flag may name; of columns with a choice each, one whose name is a template of them."""
    if flag == "choices":
        return _find_choices(columns)
    if flag == "answers":
        hold = [c for c in columns.values() if any(map(looks_like_answers, c.filled))]
        return [c for c in hold if most(lambda value: value == [] or looks_like_answers(value), c.filled)]
    return [c for c in columns.values() if c.kind == flag]


def _find_negatives(columns: Mapping[str, SampledColumn]) -> list[SampledColumn]:
    """Return the columns with lists of negatives, or of columns with a negative each, one whose name is a template of them."""
    if lists := [*filter(are_texts, columns_named(columns, USUAL_NAMES["rejected"]))]:
        return lists
    found = [c for name, c in columns.items() if _NUMBERED_NEGATIVE.fullmatch(name.lower()) and c.kind == "text"]
    return [_joined(found)] if len(found) > 1 else found


def _names_choices(column: SampledColumn, sample: RowSample) -> bool:
    """Whether each value is the text of one of the row's choices, which differ from row to row."""
    choices = _find_nested("choices", sample.columns)[:1] if column.kind == "text" else []
    names = [name for own in choices for name in columns_in(own.name, sample)]
    rows = [row for row in sample.rows["train"][:1000] if row.get(column.name) is not None]

    def is_there(row: Row) -> bool:
        values = [row.get(name) for name in names]
        return row[column.name] in [text for own in values for text in (own if isinstance(own, list) else [own])]

    return bool(names and rows) and column.name not in names and most(is_there, rows)


def columns_in(named: str, sample: RowSample) -> Sequence[str]:
    """Return the columns of a template, or the column that is named."""
    return [named] if named in sample.columns else list(column_or_template(named).columns)


def _joined(columns: Sequence[SampledColumn]) -> SampledColumn:
    """Return several columns as one, whose name is a template of them."""
    return SampledColumn(" ".join(f"{{{column.name}}}" for column in columns), [])

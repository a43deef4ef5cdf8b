"""Forms of rows that no objective reads, and what makes rows of them that one reads: for `evergreen new` and `evergreen convert`."""

from __future__ import annotations

import json
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from params import DataError
from tasks.scaffold.look import USUAL_NAMES, Row, SampledColumn

Columns = Mapping[str, SampledColumn]
NewRow = dict[str, Any]
_TEXTS: Final = {name for flag in ("text", "prompt", "completion") for name in USUAL_NAMES[flag]}
_RATINGS: Final = re.compile(
    r"(.*_)?(label|feedback|rating|score|reward|thumbs?(_up)?|votes?|quality|correct|stars|good|accepted|liked|helpful)"
)
"""Names of columns that say of each answer how good it is."""
_GOOD: Final = {"true", "1", "1.0", "good", "yes", "positive", "up", "thumbs_up", "correct", "accept", "accepted"}
_BAD: Final = {"false", "0", "0.0", "-1", "bad", "no", "negative", "down", "thumbs_down", "wrong", "reject", "rejected"}
_PREFIX: Final = re.compile(r"([BIESLU])-(.+)")


class RowForm(NamedTuple):
    """What a column holds, and how rows with it become others."""

    column: str
    what: str
    becomes: str
    """What `convert` writes; without `convert`, what to do, where `{convert}` is the command."""
    convert: Callable[[Row], list[NewRow]] | None = None
    """Returns what becomes of a row; none if it is not wanted. A ValueError says why it cannot be converted."""
    is_proposed: bool = True
    """Whether a recipe may still be proposed for other columns; not if it would learn something else than the rows say."""

    def error(self, files: Sequence[str] = (), instead: str = "") -> DataError:
        """Return the error with the command that converts the files of a source; `instead` says what else can be done."""
        first, *others = files or ["FILE"]
        to = Path(first).with_name(f"{Path(first).name.partition('.')[0]}-clean.jsonl").as_posix()
        command = f"evergreen convert {shlex.quote(first)} {shlex.quote(to)}"
        more = f" (and the same for {', '.join(others)})" if others else ""
        fix = f"{command} writes {self.becomes}{more}; then give --data {shlex.quote(to)}"
        if self.convert is None:
            fix = self.becomes.format(convert=command)
        return DataError(self.column, self.what, fix + instead)


def find_row_forms(columns: Columns, names: Sequence[str] = ()) -> Iterator[RowForm]:
    """Yield the forms that are found; `names` are those of tags which are numbers."""
    yield from _json_text(columns)
    yield from _rows_in_one(columns)
    yield from _reviewed(columns)
    yield from _rated(columns)
    yield from _records(columns)
    yield from _tags(columns, names)
    for column in columns.values():
        if column.kind == "list" and all(_is_offset(item) for value in column.filled for item in value):
            yield RowForm(
                column.name,
                "holds lists of start, end and label",
                "records of them",
                partial(_with_records, column.name),
            )
        elif column.name.lower() in USUAL_NAMES["label"]:
            yield from unread_label(column)
        elif column.is_numeric and not column.can_be_text and column.name.lower() in _TEXTS:
            yield numbers_as_text(column)


def rating_column(columns: Columns) -> SampledColumn | None:
    """Return the column that seems to say of each answer or conversation how good it is."""
    by_name = {name.lower(): column for name, column in columns.items()}
    prompt, answer = (
        next((by_name[name] for name in USUAL_NAMES[flag] if name in by_name), None)
        for flag in ("prompt", "completion")
    )
    is_pair = prompt and answer and prompt is not answer
    if not is_pair and all(column.kind != "messages" for column in columns.values()):
        return None
    others = [c for c in columns.values() if c not in (prompt, answer) and _RATINGS.fullmatch(c.name.lower())]
    return next((c for c in others if c.filled and (c.is_numeric or _words(c) <= _GOOD | _BAD)), None)


def _words(column: SampledColumn) -> set[str]:
    return {str(value).strip().lower() for value in column.filled}


def unread_label(column: SampledColumn) -> Iterator[RowForm]:
    """Yield why a column is no label of a text, if it is none."""
    if column.kind == "number" and all(float(value).is_integer() for value in column.filled):
        what = "holds whole numbers with decimals, which are no names of classes"
        yield RowForm(column.name, what, "1 for 1.0", _changing(column.name, lambda value: str(int(value))))
    elif column.is_decimal and not (column.kind == "text" and column.is_label):
        what = "holds numbers with decimals, which no objective here predicts"
        yield RowForm(column.name, what, "write a name for each range, for example low, medium and high")
    elif column.kind == "list" and not column.has_label_sets:
        what, items = "holds lists", [item for value in column.filled for item in value]
        if items and all(isinstance(item, str | int) for item in items) and all(map(_is_one, column.filled)):
            yield RowForm(column.name, what, "the one label of each", _changing(column.name, lambda value: value[0]))
        else:
            becomes = "write lists of labels, each a text or a number, of which rows have several in common"
            yield RowForm(column.name, f"{what} of something else than labels", becomes)


def numbers_as_text(column: SampledColumn) -> RowForm:
    """Return how a column of numbers becomes one of texts."""
    return RowForm(column.name, "holds numbers, which are not read as text", "texts", _changing(column.name, str))


def _changing(name: str, change: Callable[[Any], Any]) -> Callable[[Row], list[NewRow]]:
    return lambda row: [{**row, name: None if row.get(name) is None else change(row[name])}]


def _json_text(columns: Columns) -> Iterator[RowForm]:
    for column in columns.values():
        if column.kind == "json":
            convert = _changing(column.name, json.loads)
            holds_messages = all(map(_is_conversation, map(json.loads, column.filled)))
            yield RowForm(column.name, "holds JSON as text", "what it says", convert, is_proposed=not holds_messages)


def _is_conversation(value: Any) -> bool:
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(one, dict) and not {"role", "from"}.isdisjoint(one) for one in value)


def _rows_in_one(columns: Columns) -> Iterator[RowForm]:
    for column in columns.values():
        first = next(iter(column.filled), None)
        if len(column.values) == 1 and column.kind == "list" and first and isinstance(first[0], dict):
            what, becomes = "holds all rows as one list", "one row per line"
            yield RowForm(column.name, what, becomes, operator.itemgetter(column.name))


def _reviewed(columns: Columns) -> Iterator[RowForm]:
    """Yield for Prodigy's answers: what was rejected or ignored is no example."""
    column = columns.get("answer")
    if column and column.kind == "text" and {"accept"} < {*column.filled, "accept"} <= {"accept", "reject", "ignore"}:
        what = "says which rows were rejected or ignored"
        yield RowForm("answer", what, "the accepted ones", partial(_good_row, "answer"), is_proposed=False)


def _rated(columns: Columns) -> Iterator[RowForm]:
    if column := rating_column(columns):
        values = _words(column)
        what = f"seems to say how good the answers are ({', '.join(sorted(values)[:5])}), and no objective reads that"
        if values <= _GOOD | _BAD:
            yield RowForm(column.name, what, "the rows with good answers", partial(_good_row, column.name))
        else:
            yield RowForm(column.name, what, "keep the rows with good answers, and remove this column")


def _good_row(name: str, row: Row) -> list[NewRow]:
    return [_without(row, name)] if str(row.get(name)).strip().lower() in _GOOD else []


def _without(row: Row, *names: str) -> NewRow:
    return {name: value for name, value in row.items() if name not in names}


def _records(columns: Columns) -> Iterator[RowForm]:
    has_texts = any(column.kind == "text" for column in columns.values())
    for column in columns.values():
        if column.kind != "record":
            continue
        name, keys = column.name, list(dict.fromkeys(key for value in column.filled for key in value))
        holds = f"holds records with {', '.join(map(repr, keys[:5]))}"
        if not has_texts:
            yield RowForm(name, holds, "a column of each", partial(_without_record, name))


def _without_record(name: str, row: Row) -> list[NewRow]:
    return [_without(row, name) | (row.get(name) or {})]


def _is_one(value: Sequence[Any]) -> bool:
    return len(value) == 1


def _tags(columns: Columns, names: Sequence[str]) -> Iterator[RowForm]:
    lists = [column for column in columns.values() if column.kind == "list" and column.filled]
    words = next((c for c in lists if all(isinstance(own, str) for value in c.filled for own in value)), None)
    if words is None:
        return
    places = [value is not None for value in words.values]
    tagged = [c for c in lists if c is not words and places == [value is not None for value in c.values]]
    tagged = [c for c in tagged if all(len(a) == len(b) for a, b in zip(words.filled, c.filled, strict=True))]
    tagged = [c for c in tagged if all(isinstance(own, str | int) for value in c.filled for own in value)]
    if not tagged:
        return
    column = min(tagged, key=lambda c: "ner" not in c.name.lower())
    found = {own for value in column.filled for own in value}
    what = f"holds the tags of the words in `{words.name}`, and spans of a text are read"
    if any(isinstance(tag, int) for tag in found) and not names:
        becomes = f"{{convert}} --names O,B-PER,I-PER with the names of 0 to {max(found)} makes text and spans"
        yield RowForm(column.name, f"{what}; they are numbers", becomes)
        return
    spoken = {names[tag] if isinstance(tag, int) and 0 <= tag < len(names) else str(tag) for tag in found}

    def spans(row: Row) -> list[NewRow]:
        if not row.get(words.name) or len(row[words.name]) != len(row.get(column.name) or ()):
            raise ValueError(f"`{words.name}` and `{column.name}` are not equally many")
        unnamed = (tag for tag in row[column.name] if isinstance(tag, int) and not 0 <= tag < len(names))
        if (tag := next(unnamed, None)) is not None:
            raise ValueError(f"the tag {tag} has no name")
        tags = [names[tag] if isinstance(tag, int) else tag for tag in row[column.name]]
        return [
            _without(row, *(c.name for c in (words, *tagged)))
            | _spans_of_tags(row[words.name], tags, has_outside="O" in spoken)
        ]

    yield RowForm(column.name, what, "text and spans", spans)


def _spans_of_tags(words: Sequence[str], tags: Sequence[str], *, has_outside: bool) -> dict[str, Any]:
    """Return the text of words with the spans that their tags mark: BIO, BIOES, BILOU, or runs of the same tag."""
    spans, start, before = list[dict[str, Any]](), 0, ""
    for word, tag in zip(words, tags, strict=True):
        end, match = start + len(word), _PREFIX.fullmatch(tag)
        mark, label = match.groups() if match else ("I" if has_outside else "S", tag)
        if tag != "O" and mark in "IEL" and before == label:
            spans[-1]["end"] = end
        elif tag != "O":
            spans.append({"label": label, "start": start, "end": end})
        before = "" if tag == "O" or mark in "ELSU" else label
        start = end + 1
    return {"text": " ".join(words), "spans": spans}


def _is_offset(item: Any) -> bool:
    is_triple = isinstance(item, list) and len(item) == 3
    return is_triple and all(isinstance(place, int) for place in item[:2]) and isinstance(item[2], str)


def _with_records(name: str, row: Row) -> list[NewRow]:
    found = [{"label": label, "start": start, "end": end} for start, end, label in row.get(name) or ()]
    return [_without(row, name) | {"spans": found}]

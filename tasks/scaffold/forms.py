"""Forms of rows that no objective reads, each as a declaration: for `evergreen new`, which names them, and `evergreen convert`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from params import DataError
from tasks.ingestion.encodings import clean_name
from tasks.scaffold.look import Row, SampledColumn, columns_named, columns_of_rows, most
from tasks.scaffold.sources import common_folder, converted_name, is_glob
from tasks.scaffold.usual_names import CONTEXT, LISTED, RELEVANCE, SYSTEM, USUAL_NAMES
from tasks.scaffold.written_values import looks_written, parse_written
from trainer.objectives.bases.feedback import BAD, GOOD
from trainer.objectives.bases.messages import looks_like_conversation, read_turns

Columns = Mapping[str, SampledColumn]
NewRow = dict[str, Any]
_RATINGS: Final = re.compile(
    r"(.*_)?(label|feedback|rating|score|reward|thumbs?(_up)?|votes?|quality|correct|stars|good|accepted|liked|helpful)"
)
"""Names of columns that say of each answer how good it is."""
_FLAGS: Final = {"train": "--data", "validation": "--validation", "test": "--test"}


class RowForm(NamedTuple):
    """A form of rows: what a column holds, what one row becomes, and how it is recognized."""

    what: str
    """What is said of a column; `{found}` is what `find` returns."""
    becomes: str
    """What `convert` makes of the rows; without it, what to do."""
    find: Callable[[SampledColumn, Columns], Any]
    """Returns what else is known of a column of this form, and something false for another column."""
    convert: Callable[[Row, str, Any], list[NewRow]] | None = None
    """Returns what a row with this column becomes; none if it is not wanted. A ValueError says why it cannot be converted."""
    role: str = ""
    """Only columns are of this form that are a `label` or a `text`, by their names or because somebody says so."""
    is_proposed: bool = True
    """Whether a recipe may still be proposed for other columns; not if it would learn something else than the rows say."""
    also_written: str = ""
    """The other column, if there is one, whose values are others in the converted rows."""
    column: str = ""
    found: Any = None

    def error(self, patterns: Mapping[str, str], instead: str = "") -> DataError:
        """Return the error with the command that converts the files of each split; `instead` says what else can be done."""
        what, becomes = (said.format(found=self.found) for said in (self.what, self.becomes))
        if self.convert is None:
            return DataError(self.column, what, becomes + instead)
        given = dict.fromkeys(patterns.values()) or {"FILE": None}
        to = clean_name(Path(next(iter(given))), ".jsonl")
        new = {"train": to}
        if len(given) > 1 or is_glob(next(iter(given))):
            to = f"{common_folder(given) or 'rows'}-clean"
            new = {split: converted_name(pattern, given, to) for split, pattern in patterns.items()}
        flags = " ".join(f"{_FLAGS[split]} {shlex.quote(path)}" for split, path in new.items())
        command = f"evergreen convert {shlex.join([*given, to])}{getattr(self.found, 'flags', '')}"
        return DataError(self.column, what, f"{command} writes {becomes}; then give {flags}{instead}")


def find_row_forms(columns: Columns, meant: Mapping[str, str] = MappingProxyType({})) -> Iterator[RowForm]:
    """Yield the forms that are found; `meant` has a column by its role, `label` or `text`, if somebody says so."""
    for form in FORMS:
        for name, column in columns.items():
            has_role = not form.role or meant.get(form.role) == name or name.lower() in _ROLES[form.role]
            if has_role and column.filled and (found := form.find(column, columns)):
                yield form._replace(column=name, found=found)


def rating_column(columns: Columns) -> str | None:
    """Return the column that seems to say of each answer or conversation how good it is."""
    return next((name for name, column in columns.items() if _ratings(column, columns)), None)


def feedback_columns(columns: Columns) -> list[SampledColumn]:
    """Return the columns that say of each answer or conversation that it is good, or that it is bad."""
    return [column for column in columns.values() if _ratings(column, columns, in_words=True)]


def _changed(change: Callable[[Any], Any]) -> Callable[[Row, str, Any], list[NewRow]]:
    return lambda row, name, _: [{**row, name: None if row.get(name) is None else change(row[name])}]


def _only(values: Sequence[Any]) -> Any:
    if len(values) != 1:
        raise ValueError(f"{len(values)} labels")
    return values[0]


def _good(row: Row, name: str, _: Any) -> list[NewRow]:
    return [_without(row, name)] if str(row.get(name)).strip().lower() in GOOD else []


def _answered_label(column: SampledColumn, columns: Columns) -> str:
    """Return the only label of all rows, if a column says of each row whether it is accepted: two classes, as in Prodigy's binary annotations."""
    is_answer = column.name == "answer" and {"accept", "reject"} <= {*map(str, column.filled)} <= {
        "accept",
        "reject",
        "ignore",
    }
    label = columns.get("label")
    is_one = is_answer and label is not None and label.kind == "text" and label.distinct == 1
    return str(label.filled[0]) if is_one and label else ""


def _with_answer(row: Row, name: str, _: Any) -> list[NewRow]:
    label = row.get("label")
    if row.get(name) == "ignore" or label is None:
        return []
    return [_without(row, name) | {"label": label if row.get(name) == "accept" else f"not {label}"}]


def _one_conversation(row: Row, name: str, prompt: str) -> list[NewRow]:
    before = row.get(prompt) or []
    before = [{"role": "user", "content": before}] if isinstance(before, str) else before
    known = [{**one, "weight": 0} if read_turns([one])[0]["role"] == "assistant" else one for one in before]
    return [_without(row, name, prompt) | {"messages": [*known, *(row.get(name) or ())]}]


def _without(row: Row, *names: str) -> NewRow:
    return {name: value for name, value in row.items() if name not in names}


def _pair(columns: Columns) -> list[SampledColumn]:
    """Return the columns of a prompt and its answer, by their names; none if one is missing."""
    pair = [own for flag in ("prompt", "completion") for own in columns_named(columns, USUAL_NAMES[flag])[:1]]
    return pair if len(pair) == 2 and pair[0] is not pair[1] else []


def _ratings(column: SampledColumn, columns: Columns, *, in_words: bool = False) -> str:
    """Return the values of a column that says of each answer or conversation how good it is; `in_words`: good or bad."""
    are_answers = _pair(columns) or any(own.kind == "messages" for own in columns.values())
    if not are_answers or column in _pair(columns) or not _RATINGS.fullmatch(column.name.lower()):
        return ""
    values = [str(value).strip().lower() for value in column.filled]
    is_rating = most((GOOD | BAD).__contains__, values) or (column.is_numeric and not in_words)
    return ", ".join(sorted({*values})[:5]) if is_rating else ""


def _are_turns_before(column: SampledColumn, columns: Columns) -> bool:
    """Whether a column has the turns before a prompt and its answer, each as a list of what was asked and what was answered."""
    pair = _pair(columns)
    is_called_so = column.name.lower() == "history" and bool(pair) and all(own.kind == "text" for own in pair)
    return is_called_so and _holds(column, lambda one: isinstance(one, list) and [*map(type, one)] == [str, str])


def _with_turns_before(row: Row, name: str, _: Any) -> list[NewRow]:
    """Return a row with one conversation: what the system says, the turns before, the prompt with what it is about, and the answer."""
    columns = columns_of_rows([row])
    prompt, answer = (own.name for own in _pair(columns))
    about, system = ([own.name for own in columns_named(columns, usual)] for usual in (CONTEXT, SYSTEM))
    asked = [prompt, *(one for one in about if one != prompt)]
    said = [str(row[one]) for one in asked if str(row.get(one) or "").strip()]
    messages = [{"role": "system", "content": row[one]} for one in system[:1] if str(row[one] or "").strip()]
    for turn in [*(row.get(name) or ()), ["\n\n".join(said), row[answer]]]:
        messages += [{"role": role, "content": text} for role, text in zip(("user", "assistant"), turn, strict=True)]
    return [_without(row, name, *asked, answer, *system[:1]) | {"messages": messages}]


def _prompt_of_messages(column: SampledColumn, columns: Columns) -> str:
    """Return the column with the prompt of an answer that is a list of messages; empty if a column has whole conversations."""
    prompt, answer = _pair(columns) or (column, None)
    others = (own for own in columns.values() if own not in (prompt, answer))
    is_answer = column is answer and column.kind == "messages" and all(own.kind != "messages" for own in others)
    is_answer = is_answer and most(_begins_with_answer, list(filter(None, column.filled)))
    kinds = ("text",) if feedback_columns(columns) else ("messages", "text")
    return prompt.name if is_answer and prompt.kind in kinds else ""


def _begins_with_answer(messages: Any) -> bool:
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return bool(read_turns(messages)[0]["role"] == "assistant")
    return False


def _rated_messages(column: SampledColumn, columns: Columns) -> str:
    has_parts = any(_prompt_of_messages(own, columns) for own in columns.values())
    return _ratings(column, columns, in_words=True) if has_parts else ""


def _keys(column: SampledColumn) -> str:
    keys = dict.fromkeys(key for value in column.filled for key in value) if column.kind == "record" else ()
    return ", ".join(map(repr, [*keys][:5]))


def _with_keys(row: NewRow, record: NewRow) -> NewRow:
    """Return a row with the values of a record; ValueError if one would take the place of another value."""
    if taken := [key for key, value in record.items() if row.get(key, value) != value]:
        raise ValueError(f"`{taken[0]}` is a column with another value already")
    return row | record


def _holds(column: SampledColumn, is_item: Callable[[Any], bool]) -> bool:
    """Whether a column holds lists of nothing else than such items."""
    return column.kind == "list" and any(column.filled) and all(map(is_item, column.items))


def _is_name(item: Any) -> bool:
    return isinstance(item, str | int)


def _right_choice(column: SampledColumn, columns: Columns) -> str:
    """Return the column that says which choice is right, for records of the texts of choices and of their marks."""
    are_choices = column.kind == "record" and all(
        own.keys() == {"text", "label"} and all(isinstance(part, list) for part in own.values())
        for own in column.filled
    )
    if not are_choices:
        return ""
    marks = [[*map(str, (own or {}).get("label", ()))] for own in column.values]

    def is_right(own: SampledColumn) -> bool:
        return most(lambda pair: str(pair[0]) in pair[1], [*zip(own.values, marks, strict=True)])

    return next((name for name, own in columns.items() if is_right(own)), "")


def _with_choices(row: Row, name: str, right: str) -> list[NewRow]:
    """Return a row with a list of its choices, and the number of the right one, from 0 on."""
    marks = [str(mark) for mark in (row.get(name) or {}).get("label", ())]
    if str(row.get(right)) not in marks:
        raise ValueError(f"`{right}` is {row.get(right)!r}, which is none of {', '.join(marks)}")
    return [{**row, name: row[name]["text"], right: marks.index(str(row[right]))}]


def _are_rows(column: SampledColumn) -> bool:
    rows = len(column.values)  # one, or of a file each
    return _holds(column, lambda item: isinstance(item, dict)) and rows <= 10 and rows <= min(map(len, column.filled))


class _Tags(NamedTuple):
    words: str
    columns: Sequence[str]
    """All columns of tags."""
    used: frozenset[Any]
    names: Sequence[str] = ()

    @property
    def flags(self) -> str:
        last = max((tag for tag in self.used if isinstance(tag, int)), default=None)
        return "" if last is None else f" --names O,B-PER,I-PER with the names of the numbers 0 to {last}"


def _tags(column: SampledColumn, columns: Columns) -> _Tags | None:
    lists = [own for own in columns.values() if column.kind == "list" and _holds(own, _is_name)]
    words = next((own for own in lists if isinstance(own.items[0], str)), column)

    def is_aligned(own: SampledColumn) -> bool:
        return most(
            lambda pair: len(pair[0] or ()) == len(pair[1] or ()), [*zip(words.values, own.values, strict=True)]
        )

    tagged = [own for own in lists if own is not words and is_aligned(own)]
    if not tagged or column is not min(tagged, key=lambda own: "ner" not in own.name.lower()):
        return None
    return _Tags(words.name, [own.name for own in tagged], frozenset(column.items))


@cache
def _scheme(tags: frozenset[str]) -> tuple[frozenset[str], re.Pattern[str]]:
    """Return the tags of words outside of spans, and the form of others: BIO, BIOES, BILOU, in both cases if all tags are of that form."""
    of_form = all(re.fullmatch("o|[bieslu]-.+", tag, re.IGNORECASE) for tag in tags)
    in_both_cases = of_form and any(re.match("[bi]-", tag, re.IGNORECASE) for tag in tags)
    marks = re.compile("([BIESLU])-(.+)", re.IGNORECASE if in_both_cases else 0)
    return frozenset("oO" if in_both_cases else "O"), marks


def _with_spans(row: Row, name: str, found: _Tags) -> list[NewRow]:
    """Return a row with the text of its words, and the spans that their tags mark, or runs of the same tag."""
    words, own, names = row.get(found.words), row.get(name), dict(enumerate(found.names))
    if not words or not own or len(words) != len(own):
        raise ValueError(f"`{found.words}` and `{name}` are not equally many")
    tags = [names.get(tag) if isinstance(tag, int) else str(tag) for tag in own]
    if None in tags:
        raise ValueError(f"the tag {own[tags.index(None)]} has no name")
    used = frozenset(str(names.get(tag, tag)) for tag in found.used)
    outside, form = _scheme(used)
    spans, start, before = list[NewRow](), 0, ""
    for word, tag in zip(words, map(str, tags), strict=True):
        end, match = start + len(word), form.fullmatch(tag)
        mark, label = match.groups() if match else ("I" if outside & used else "S", tag)
        if tag not in outside and mark.upper() in "IEL" and before == label:
            spans[-1]["end"] = end
        elif tag not in outside:
            spans.append({"label": label, "start": start, "end": end})
        before = label if tag not in outside and mark.upper() in "BI" else ""
        start = end + 1
    return [_without(row, found.words, *found.columns) | {"text": " ".join(words), "spans": spans}]


_ROLES: Final = {
    "label": {*USUAL_NAMES["label"]},
    "text": {name for flag in ("text", "prompt", "completion") for name in USUAL_NAMES[flag]},
}
_Label = partial(RowForm, role="label")
_Other = partial(RowForm, is_proposed=False)
_JSON: Final = ("holds JSON as text, or lists and records as Python writes them", "what it says")
_RATED: Final = "seems to say how good the answers are ({found}), and no objective reads that"
_LIKED: Final = (
    "seems to say how good the answers are ({found}), and no objective for these rows and this model reads that"
)
_TAGS: Final = "holds the tags of the words in `{found.words}`, and spans of a text are read"
_PARTS: Final = "holds the messages that answer `{found}`, and a conversation is read from one column"
_WHOLE: Final = "holds whole numbers with decimals, which are no names of classes"
_DECIMAL: Final = "holds numbers with decimals, which are no names of classes"
FORMS: Final = (
    _Other(
        *_JSON,
        lambda c, _: c.kind == "json" and any(c.parsed) and most(looks_like_conversation, c.parsed),
        _changed(parse_written),
    ),
    RowForm(*_JSON, lambda c, _: c.kind == "json", _changed(parse_written)),
    _Other(
        "holds lists or records as text, in a form that cannot be read",
        "write them as JSON, with the program that has them",
        lambda c, _: c.kind == "text" and most(looks_written, c.filled),
    ),
    RowForm(
        "holds all rows as one list", "one row per line", lambda c, _: _are_rows(c), lambda row, name, _: row[name]
    ),
    _Other(
        "says whether the label {found!r} is right",
        "the labels {found!r} and 'not {found}'",
        _answered_label,
        _with_answer,
        also_written="label",
    ),
    _Other(
        "says which rows were rejected or ignored",
        "the accepted ones",
        lambda c, _: c.name == "answer" and {*map(str, c.filled)} <= {"accept", "reject", "ignore"},
        _good,
    ),
    _Other(_LIKED, "the rows with good answers", _rated_messages, _good),
    RowForm(_LIKED, "the rows with good answers", partial(_ratings, in_words=True), _good),
    RowForm(_RATED, "keep the rows with good answers, and remove this column", _ratings),
    _Other(_PARTS, "both as `messages`", _prompt_of_messages, _one_conversation),
    _Other("holds the turns before the prompt", "all as `messages`", _are_turns_before, _with_turns_before),
    _Other("holds choices with marks, which `{found}` names", "lists of them", _right_choice, _with_choices),
    RowForm(
        "holds true and false, and grades are numbers",
        "1 and 0",
        lambda c, columns: (
            c.kind == "boolean" and c.name.lower() in RELEVANCE and columns_named(columns, USUAL_NAMES["prompt"])
        ),
        _changed(int),
    ),
    RowForm(
        "holds records with {found}",
        "a column of each",
        lambda c, columns: (
            (c.name == "translation" or all(own.kind != "text" for own in columns.values())) and _keys(c)
        ),
        lambda row, name, _: [_with_keys(_without(row, name), row.get(name) or {})],
    ),
    RowForm(_TAGS, "text and spans", _tags, _with_spans),
    RowForm(
        "holds lists of start, end and label",
        "records of them",
        lambda c, _: _holds(c, lambda one: isinstance(one, list) and [*map(type, one)] == [int, int, str]),
        _changed(lambda offsets: [{"label": label, "start": start, "end": end} for start, end, label in offsets]),
    ),
    _Label(
        _WHOLE,
        "1 for 1.0",
        lambda c, _: c.kind == "number" and all(float(value).is_integer() for value in c.filled),
        _changed(lambda value: str(int(value))),
    ),
    _Label(
        _DECIMAL,
        "name it with --score {found} to predict the number; or, for classes, write a name for each range, for example low, medium and high",
        lambda c, _: not (c.kind == "text" and c.is_label) and c.is_decimal and shlex.quote(c.name),
    ),
    _Label(
        "holds lists",
        "the one label of each",
        lambda c, _: _holds(c, _is_name) and {*map(len, c.filled)} == {1},
        _changed(_only),
    ),
    _Label(
        "holds lists of something else than labels",
        "write lists of labels, each a text or a number, of which rows have several in common; or, if they are labels,"
        " add --labels {found}",
        lambda c, _: c.kind == "list" and not c.has_label_sets and shlex.quote(c.name),
    ),
    _Other(
        "holds lists, and `{found}` is one text",
        "a row for each",
        lambda c, columns: columns_named(columns, USUAL_NAMES["prompt"]) and _holds(c, _is_name) and LISTED.get(c.name),
        lambda row, name, found: [_without(row, name) | {found: text} for text in row.get(name) or [None]],
    ),
    RowForm(
        "holds numbers, which are not read as text",
        "texts",
        lambda c, _: c.is_numeric and not c.can_be_text,
        _changed(str),
        role="text",
    ),
)

"""Forms of rows that no objective reads, each as a declaration: for `evergreen new`, which names them, and `evergreen convert`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from trainer.objectives.bases.conversations.messages import looks_like_conversation, read_turns
from trainer.objectives.bases.preferences.feedback import BAD, GOOD

Columns = Mapping[str, SampledColumn]
NewRow = dict[str, Any]
_RATINGS: Final = re.compile(
    r"(.*_)?(label|feedback|rating|score|reward|thumbs?(_up)?|votes?|quality|correct|stars|good|accepted|liked|helpful)"
)
"""Names of columns that say of each answer how good it is."""
_WORDS: Final = frozenset({"tokens", "words", "tokenized_text"})
"""Usual names of columns with the words of a text; of several lists of texts, others are tags."""
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
    decides: str = ""
    """The flag that such a column decides about in each row, so that no other column can be named for all rows."""
    changes: Callable[[Any], Collection[str]] = lambda _: ()
    """Returns the other columns whose values are others in the converted rows, by what `find` has returned."""
    column: str = ""
    found: Any = None

    @property
    def changed_columns(self) -> set[str]:
        """The columns whose values are others in the converted rows."""
        return {self.column, *self.changes(self.found)}

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
    asked = [prompt, *(own.name for own in columns_named(columns, CONTEXT) if own.name != prompt)]
    question = "\n\n".join(str(row[name]) for name in asked if _is_filled(row, name))
    system = [own.name for own in columns_named(columns, SYSTEM)[:1]]
    messages = [{"role": "system", "content": row[name]} for name in system if _is_filled(row, name)]
    for turn in [*(row.get(name) or ()), [question, row[answer]]]:
        messages += [{"role": role, "content": text} for role, text in zip(("user", "assistant"), turn, strict=True)]
    return [_without(row, name, *asked, answer, *system) | {"messages": messages}]


def _is_filled(row: Row, name: str) -> bool:
    return bool(str(row.get(name) or "").strip())


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


class _Messages(NamedTuple):
    columns: Sequence[str]
    """All columns with one message in each row."""
    prompt: str = ""
    """The column with the messages before them, if they are answers to compare; empty if that is called `prompt`."""


def _single_messages(column: SampledColumn, columns: Columns) -> _Messages | None:
    """Return the columns that hold one message in each row, as LLaMA-Factory has the answers of preferences; None if this is not the first."""
    names = [
        name for name, own in columns.items() if own.kind == "record" and most(_looks_like_message, list(own.filled))
    ]
    if column.name not in names[:1]:
        return None
    before = [name for name, own in columns.items() if own.kind == "messages"]
    compares = all(columns_named(columns, USUAL_NAMES[flag]) for flag in ("chosen", "rejected"))
    is_prompt = compares and len(before) == 1 and "prompt" not in columns
    return _Messages(names, before[0] if is_prompt else "")


def _looks_like_message(value: Any) -> bool:
    return looks_like_conversation([value])


def _with_lists_of_messages(row: Row, _: str, found: _Messages) -> list[NewRow]:
    lists = {name: [row[name]] for name in found.columns if row.get(name) is not None}
    prompt = {"prompt": row.get(found.prompt)} if found.prompt else {}
    return [_without(row, found.prompt) | prompt | lists]


class _Winner(NamedTuple):
    first: str
    second: str
    values: Mapping[str, int]
    """What says that the first one is better (0), that the second one is (1), and that none is (-1)."""


_JUDGED: Final = re.compile("(.*_)?(winner|preference|preferred|better|verdict)")
"""Names of columns that say which of two answers is better."""
_OTHER_MARK: Final = {"a": "b", "1": "2"}
"""What stands at the end of the second name of two answers, by that of the first one."""
_NEITHER: Final = (
    "tie",
    "tie (bothbad)",
    "tie (both bad)",
    "bothbad",
    "both bad",
    "both",
    "neither",
    "none",
    "equal",
    "same",
)


def _winner(column: SampledColumn, columns: Columns) -> _Winner | None:
    """Return the two answers, and what says which one is better, for a column that names it: `model_a`, `A` or `response_a`."""
    if column.kind not in ("text", "integer") or not _JUDGED.fullmatch(column.name.lower()):
        return None
    said = {str(value).strip().lower() for value in column.filled}

    def is_said(own: _Winner) -> bool:
        return said <= own.values.keys() and {0, 1} <= {own.values[value] for value in said}

    return _longest_answers(columns, is_said)


def _winner_by_number(column: SampledColumn, columns: Columns) -> _Winner | None:
    """Return the two answers for a column of two numbers, or of true and false, of which nothing says which answer they mean."""
    is_called_so = _JUDGED.fullmatch(column.name.lower()) or column.name.lower() in ("label", "labels")
    is_number = column.kind in ("integer", "boolean") and column.distinct == 2
    if not (is_called_so and is_number) or _winner(column, columns):
        return None
    return _longest_answers(columns, lambda _: True)


def _longest_answers(columns: Columns, fits: Callable[[_Winner], bool]) -> _Winner | None:
    """Return the longest two answers that fit."""
    pairs = (_Winner(*pair, _names_of_answers(*pair)) for pair in _pairs_of_answers(columns))
    return max(filter(fits, pairs), key=lambda pair: columns[pair.first].mean_characters, default=None)


def _pairs_of_answers(columns: Columns) -> Iterator[tuple[str, str]]:
    """Yield the names of two columns of texts, or of conversations, that differ by `a` and `b`, or `1` and `2`, at their ends."""
    if any(not _JUDGED.fullmatch(own.name.lower()) for own in columns_named(columns, USUAL_NAMES["chosen"])):
        return  # the better ones have a column already
    by_name = {name.lower(): name for name, own in columns.items() if own.kind in ("text", "messages")}
    for lower, name in by_name.items():
        other = by_name.get(lower[:-1] + _OTHER_MARK.get(lower[-1:], ""))
        if other and lower[-1:] in _OTHER_MARK:
            yield name, other


def _names_of_answers(first: str, second: str) -> dict[str, int]:
    """Return what says that the first answer is better (0), that the second one is (1), and that none is (-1)."""
    values = dict.fromkeys(_NEITHER, -1)
    for place, name in enumerate((first.lower(), second.lower())):
        mark = name[-1]
        values |= dict.fromkeys(
            (mark, name, *(f"{word}_{mark}" for word in ("model", "response", "answer", "assistant"))), place
        )
    return values


def _with_better_answer(row: Row, name: str, found: _Winner) -> list[NewRow]:
    """Return a row with the better answer as `chosen`; none where no answer is better."""
    place = found.values.get(str(row.get(name) or "neither").strip().lower())
    if place is None:
        raise ValueError(f"`{name}` is {row.get(name)!r}, which names none of `{found.first}` and `{found.second}`")
    pair = [row.get(found.first), row.get(found.second)]
    rest = _without(row, name, found.first, found.second)
    return [] if place < 0 else [_with_keys(rest, {"chosen": pair[place], "rejected": pair[1 - place]})]


def _spans_of(item: Any) -> list[NewRow]:
    """Return a span with other keys, as doccano and Label Studio write them, as one for each of its labels; none if it is no span."""
    if not isinstance(item, dict):
        return []
    start, end = (item.get(name, item.get(f"{name}_offset")) for name in ("start", "end"))
    names = item.get("labels") or [item.get("label")]
    is_span = type(start) is int and type(end) is int and isinstance(names, list)
    if not is_span or not all(isinstance(name, str) and name for name in names):
        return []
    text = {"text": item["text"]} if isinstance(item.get("text"), str) else {}
    return [{"label": name, "start": start, "end": end, **text} for name in names]


def _has_other_spans(column: SampledColumn, _: Columns) -> bool:
    return column.kind != "spans" and _holds(column, lambda item: bool(_spans_of(item)))


def _is_annotation(item: Any) -> bool:
    """Whether it is what one person marked in a text, as Label Studio writes it."""
    results = item.get("result") if isinstance(item, dict) else None
    return isinstance(results, list) and all(isinstance(one, dict) and _spans_of(one.get("value")) for one in results)


def _with_annotated_spans(row: Row, name: str, _: Any) -> list[NewRow]:
    """Return a row with the spans of its only annotation; none if nobody annotated it."""
    kept = [own for own in row.get(name) or () if not own.get("was_cancelled")]
    if len(kept) > 1:
        raise ValueError(f"`{name}` has {len(kept)} annotations of one text: keep one of them")
    spans = [span for own in kept for one in own["result"] for span in _spans_of(one["value"])]
    return [_with_keys(_without(row, name), {"spans": spans})] if kept else []


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


def _are_offsets(column: SampledColumn) -> bool:
    """Whether a column has lists of start, end and label."""
    return _holds(column, lambda one: isinstance(one, list) and [*map(type, one)] == [int, int, str])


def _words_they_count(column: SampledColumn, columns: Columns) -> str:
    """Return the column with lists of words that offsets may count, as in GLiNER's rows: none of them is larger than their number."""
    for own in columns.values():
        pairs = [*zip(own.values, column.values, strict=True)] if own.kind == "list" and _holds(own, _is_text) else []
        if pairs and all(end <= len(words or ()) for words, offsets in pairs for _, end, _ in offsets or ()):
            return own.name
    return ""


def _is_text(item: Any) -> bool:
    return isinstance(item, str)


def _is_tag(item: Any) -> bool:
    """Whether a text is a tag of BIO, BIOES or BILOU."""
    return bool(re.fullmatch("o|[bieslu]-.+", item, re.IGNORECASE))


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
    words = _column_of_words(lists)
    if words is None:
        return None
    tagged = [own for own in lists if own is not words and _is_aligned(words, own)]
    if not tagged or column is not min(tagged, key=lambda own: "ner" not in own.name.lower()):
        return None
    return _Tags(words.name, [own.name for own in tagged], frozenset(column.items))


def _column_of_words(lists: Sequence[SampledColumn]) -> SampledColumn | None:
    """Return the column whose lists are the words of texts; None if there is none, or these are sentences."""
    of_texts = [own for own in lists if _holds(own, _is_text)]
    if not of_texts:
        return None
    words = max(of_texts, key=lambda own: (own.name.lower() in _WORDS, not _holds(own, _is_tag), len({*own.items})))
    return words if most(lambda word: " " not in word.strip(), words.items) else None


def _is_aligned(words: SampledColumn, tags: SampledColumn) -> bool:
    """Whether each list of words has as many tags."""
    pairs = [*zip(words.values, tags.values, strict=True)]
    return most(lambda pair: len(pair[0] or ()) == len(pair[1] or ()), pairs)


@cache
def _scheme(tags: frozenset[str]) -> tuple[frozenset[str], re.Pattern[str]]:
    """Return the tags of words outside of spans, and the form of others: BIO, BIOES, BILOU, in both cases if all tags are of that form."""
    of_form = all(re.fullmatch("o|[bieslu]-.+", tag, re.IGNORECASE) for tag in tags)
    in_both_cases = of_form and any(re.match("[bi]-", tag, re.IGNORECASE) for tag in tags)
    marks = re.compile("([BIESLU])-(.+)", re.IGNORECASE if in_both_cases else 0)
    return frozenset("oO" if in_both_cases else "O"), marks


def _with_spans(row: Row, name: str, found: _Tags) -> list[NewRow]:
    """Return a row with the text of its words, and the spans that their tags mark, or runs of the same tag."""
    words, own = row.get(found.words), row.get(name)
    if not words or not own or len(words) != len(own):
        raise ValueError(f"`{found.words}` and `{name}` are not equally many")
    names = dict(enumerate(found.names))
    tags = [names.get(tag) if isinstance(tag, int) else str(tag) for tag in own]
    if None in tags:
        raise ValueError(f"the tag {own[tags.index(None)]} has no name")
    used = frozenset(str(names.get(tag, tag)) for tag in found.used)
    spans = _spans_of_tags(words, [*map(str, tags)], used)
    return [_without(row, found.words, *found.columns) | {"text": " ".join(words), "spans": spans}]


def _spans_of_tags(words: Sequence[str], tags: Sequence[str], used: frozenset[str]) -> list[NewRow]:
    """Return the spans that tags mark in the words of a text, with spaces between them; `used` are the tags of all texts."""
    outside, form = _scheme(used)
    spans, start, before = list[NewRow](), 0, ""
    for word, tag in zip(words, tags, strict=True):
        end, match = start + len(word), form.fullmatch(tag)
        mark, label = match.groups() if match else ("I" if outside & used else "S", tag)
        if tag in outside:
            before = ""
        else:
            if mark.upper() in "IEL" and before == label:
                spans[-1]["end"] = end
            else:
                spans.append({"label": label, "start": start, "end": end})
            before = label if mark.upper() in "BI" else ""
        start = end + 1
    return spans


_DECIMAL_COMMA: Final = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


def _has_decimal_commas(column: SampledColumn, _: Columns) -> bool:
    """Whether a column holds numbers with a comma before their decimals, and not before their thousands."""
    texts = [value.strip() for value in column.filled] if column.kind == "text" else []
    found = [text for text in texts if _DECIMAL_COMMA.fullmatch(text)]
    are_numbers = all(_DECIMAL_COMMA.fullmatch(text) or re.fullmatch(r"[+-]?\d+", text) for text in texts)
    return bool(found) and are_numbers and not all(map(_THOUSANDS.fullmatch, found))


def _with_decimal_point(row: Row, name: str, _: Any) -> list[NewRow]:
    text = str(row.get(name) or "").strip()
    return [{**row, name: float(text.replace(",", ".")) if text else None}]


def _divide(text: str, mark: str) -> list[str]:
    """Return the labels that a text joins, each once."""
    return [*dict.fromkeys(part for own in text.split(mark) if (part := own.strip()))]


def joining_mark(column: SampledColumn, columns: Columns) -> str:
    """Return what stands between the labels of a text, if most labels of texts that join some occur in another text, too."""
    distinct = dict.fromkeys(column.filled) if column.kind == "text" else {}
    are_numbers = all(map(_THOUSANDS.fullmatch, distinct)) or _has_decimal_commas(column, columns)
    if are_numbers or column.name.lower() in USUAL_NAMES["text"]:
        return ""
    return next((mark for mark in "|;," if _joins_labels([_divide(text, mark) for text in distinct])), "")


def _joins_labels(lists: Sequence[Sequence[str]]) -> bool:
    uses = Counter(label for own in lists for label in own)
    joined = [own for own in lists if len(own) > 1]
    are_enough = bool(joined) and len(joined) * _LEAST_JOINED >= len(lists)
    are_short = all(len(label) <= _LABEL_CHARACTERS for label in uses)
    return are_enough and are_short and most(lambda label: uses[label] > 1, [label for own in joined for label in own])


_LABEL_CHARACTERS: Final = 60
"""Characters of a label, at most."""
_LEAST_JOINED: Final = 20
"""One of so many texts has to join several labels."""
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
        changes=lambda _: ("label",),
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
    _Other(
        "says which of `{found.first}` and `{found.second}` is better, and preferences are read as `chosen` and `rejected`",
        "these, without the rows of which none is better",
        _winner,
        _with_better_answer,
        decides="chosen",
    ),
    RowForm(
        "seems to say by a number which of `{found.first}` and `{found.second}` is better",
        "write the better one as `chosen` and the other one as `rejected`, and remove this column",
        _winner_by_number,
        decides="chosen",
    ),
    _Other(
        "holds one message in each row, and answers are read as lists of messages",
        "lists of them",
        _single_messages,
        _with_lists_of_messages,
        changes=lambda found: found.columns,
    ),
    RowForm(
        "holds records with {found}",
        "a column of each",
        lambda c, columns: (
            (c.name == "translation" or all(own.kind != "text" for own in columns.values())) and _keys(c)
        ),
        lambda row, name, _: [_with_keys(_without(row, name), row.get(name) or {})],
    ),
    RowForm(
        "holds what Label Studio writes of each annotation, and spans of a text are read",
        "the spans of each text that somebody annotated",
        lambda c, columns: "spans" not in columns and _holds(c, _is_annotation) and any(i["result"] for i in c.items),
        _with_annotated_spans,
    ),
    RowForm(_TAGS, "text and spans", _tags, _with_spans),
    _Other(
        "holds lists of start, end and label, which may count the words in `{found}`, and spans that count characters are read",
        "write spans with `start` and `end` in characters beside the text, with the program that has them",
        lambda c, columns: _are_offsets(c) and _words_they_count(c, columns),
    ),
    RowForm(
        "holds lists of start, end and label",
        "records of them",
        lambda c, columns: _are_offsets(c) and not _words_they_count(c, columns),
        _changed(lambda offsets: [{"label": label, "start": start, "end": end} for start, end, label in offsets]),
    ),
    RowForm(
        "holds spans with other keys than start, end and label",
        "spans with these",
        _has_other_spans,
        _changed(lambda items: [span for item in items for span in _spans_of(item)]),
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
    RowForm(
        "holds numbers with decimals behind a comma",
        "them with a point",
        _has_decimal_commas,
        _with_decimal_point,
    ),
    RowForm(
        "holds several labels in one text, with {found!r} between them",
        "lists of them",
        joining_mark,
        lambda row, name, mark: [{**row, name: _divide(str(row.get(name) or ""), mark)}],
    ),
)

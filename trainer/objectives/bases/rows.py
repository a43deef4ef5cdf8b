"""Rows, and what an objective makes of them."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from params.sections.rows import Expectation
from trainer.objectives.bases.lazy_imports import NDArray, np

Row = Mapping[str, Any]
"""One row of the validated data, by column: `{"row_id": 7, "text": "abc", "label": "greeting"}`."""

Example = dict[str, Any]
"""One tokenized sequence: `{"row_id": 7, "input_ids": [5, 9, 2], "labels": [-100, 9, 2]}`.

`labels` has one integer per token; or is one integer, the class; or one float, or a list of floats, such as 1.0 for each label that a
row has and 0.0 for the others; or there are none. Where a model reads several texts, further ones are called `<name>_input_ids`.
`token_type_ids` has which of two texts that are read together each token is of. Further values are lists of integers, numbers or text. One row can become several examples.
"""


class EncodedRow(NamedTuple):
    """What becomes of one row."""

    examples: list[Example]
    is_truncated: bool = False
    """Whether the examples lack some of the row's content."""


ObjectiveState = Mapping[str, Any]
"""What an objective collected from the train split before tokenizing, as JSON: `{"labels": ["bye", "greeting"]}`."""

ScoreColumns = Mapping[str, "NDArray[np.float64]"]
"""Scores of N sequences or rows by name, each (N,): `{"nll": array([3.1, 0.4]), "tokens": array([8.0, 2.0])}`."""

ColumnKind = Literal["string", "optional", "any", "label", "labels", "number", "numbers", "records", "record"]
"""What a column holds: text; text that may be missing or blank; anything, which may be missing; one label, text or integer; a list of labels, which may be empty, or a record that says yes or no of each; a number; a list of numbers, such as a vector; a list of records; a record."""


@dataclass(frozen=True)
class PromptForm:
    """What stands around a text that is put to a published model, as around the prompts that it learned from."""

    before: str = ""
    after: str = ""
    is_chat: bool = False
    """Whether the prompt is a user's message, which the chat template renders."""
    template: str = ""
    """The template of several columns that prompts were made of, of which a text takes the place of the first."""
    is_pair: bool = False
    """Whether the model reads two texts together, `{"text": ..., "text_pair": ...}`."""
    ranks: bool = False
    """Whether the second one is a document, of which several are ranked."""

    def wrap(self, text: str) -> str:
        return f"{self.before}{text}{self.after}"

    def prompt(self, text: str) -> str | list[dict[str, str]]:
        """Return the prompt with a text: a text itself, or a conversation."""
        return [{"role": "user", "content": self.wrap(text)}] if self.is_chat else self.wrap(text)


to_json = json.JSONEncoder(default=str, sort_keys=True).encode


def hash_row_values(values: Iterable[Any]) -> int:
    """Return a hash of 64 bits of a row's values. It stays the same over versions of all libraries."""
    return int.from_bytes(hashlib.blake2b(to_json(list(values)).encode(), digest_size=8).digest(), "big")


def label_columns(columns: Mapping[str, ColumnKind]) -> list[str]:
    """Return the columns of labels, numbers or records that a row has beside what a model is given; none if there is nothing else.

    Records are labels only beside a text, as spans and answers are: without one they are what is read, such as messages beside their tools.
    """
    for kinds in ({"label"}, {"number"}, {"labels"}, {"numbers"}):
        if (found := [name for name, kind in columns.items() if kind in kinds]) and len(found) < len(columns):
            return found
    has_text = "string" in columns.values()
    return [name for name, kind in columns.items() if has_text and kind in {"record", "records"}]


def hash_but_labels(columns: Mapping[str, ColumnKind], row: Row) -> int:
    """Return the hash of a row without its labels: a corrected label makes no other row of it."""
    labels = label_columns(columns)
    return hash_row_values([row[name] for name in columns if name not in labels])


def format_row_hash(value: int) -> str:
    """Return a hash as a text that no spreadsheet takes for a number."""
    return f"h{value:016x}"


def expect_columns(columns: Mapping[str, ColumnKind], text_columns: Collection[str]) -> list[Expectation]:
    """Return the checks of what each column holds by itself; `text_columns` are those of the source that hold text."""
    checks = []
    for column, kind in columns.items():
        if kind in ("optional", "any"):
            continue
        checks.append(Expectation(type="expect_column_values_to_not_be_null", column=column))
        if kind == "string" or (kind == "label" and column in text_columns):
            checks.append(Expectation(type="expect_column_values_to_match_regex", column=column, regex=r"\S"))
        elif kind == "number":
            most = sys.float_info.max
            between = "expect_column_values_to_be_between"
            checks.append(Expectation(type=between, column=column, min_value=-most, max_value=most))
    return checks


def why_columns_unusable(columns: Mapping[str, ColumnKind], row: Row) -> str | None:
    """Return what is wrong with lists of labels or numbers, or with columns of which a row needs one; None if nothing."""
    by_kind: dict[ColumnKind, list[str]] = {"labels": [], "numbers": [], "optional": []}
    for column, kind in columns.items():
        by_kind.setdefault(kind, []).append(column)
    for column in by_kind["labels"]:
        if isinstance(row[column], list) and None in row[column]:
            return f"one of its {column} is null"
    for column in by_kind["numbers"]:
        if reason := _why_no_numbers(row[column]):
            return f"its {column} {reason}"
    optional = by_kind["optional"]
    is_blank = optional and not any(str(row.get(column) or "").strip() for column in optional)
    return f"none of {' and '.join(optional)} has text" if is_blank else None


def _why_no_numbers(value: Any) -> str | None:
    if not isinstance(value, list):
        return "is no list of numbers"
    if not value:
        return "is an empty list"
    for place, number in enumerate(value):
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"has {number!r:.50} at place {place}, which is not a number"
        if not math.isfinite(number):
            return f"has {number} at place {place}, which is not finite"
    return None


class RowBreakdown(NamedTuple):
    """One way to put rows into groups, with values of each row whose means the report shows by group."""

    by: str
    """What puts a row into its group: `true price`."""
    groups: Sequence[str]
    """The names of the G groups, in their order."""
    places: NDArray[np.int64]
    """The group of each of N rows, from 0 on, (N,)."""
    values: Mapping[str, NDArray[np.float64]]
    """By the name of a mean, the value of each row, (N,); NaN of a row that has none."""


def cut_into_tenths(values: NDArray[np.float64]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of up to ten groups of about equally many of N values, (N,), and the group of each, (N,).

    Equal values are in one group, and up to ten different ones make a group each. A name is the least and the largest value of its group.
    """
    known = np.unique(values)
    tenths = np.quantile(values, np.arange(1, 11) / 10, method="inverted_cdf")
    ends = known if len(known) <= 10 else np.unique(tenths)
    places = np.searchsorted(ends, values)
    own = [values[places == place] for place in range(len(ends))]
    return [_range(float(group.min()), float(group.max())) for group in own], places


def _range(low: float, high: float) -> str:
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


def hash_group_value(value: object) -> int:
    """Return a number for the value that the rows of a group share; as a float, too, it stays what it is."""
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=6).digest(), "big")


def group_statistics(
    scores: ScoreColumns, group: str, statistics: Callable[[Mapping[str, NDArray[np.float64]]], list[float]]
) -> NDArray[np.float64]:
    """Return S numbers for each of N rows, (N, S): what `statistics` says of the scores of each group, in the group's first row.

    The rows of a group have the same number in the score `group`, wherever they stand.
    """
    _, first, inverse, counts = np.unique(scores[group], return_index=True, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    of_groups = [statistics({name: column[rows] for name, column in scores.items()}) for rows in members]
    found = np.zeros((len(inverse), len(of_groups[0])))
    found[first] = of_groups
    return found

"""The rows of the train split that drift looks at, chosen by a hash of their content.

The rows with the smallest hashes are a random sample that does not depend on order, and a row that is in the sample of
one run is in that of a later run with more rows unless smaller hashes push it out (bottom-k sketches: Cohen and Kaplan
2007, https://doi.org/10.1145/1281100.1281133). So two runs can tell their old and new rows apart without each other's
rows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from tasks.progress import reset_idle_timer
from tasks.shards.kept_work import ShardTask, ShardWorkers, hash_settings
from tasks.shards.split_rows import SplitRows, group_values_of_row, values_of_column
from trainer import objectives
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.labels.names import as_learned
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import hash_row_values
from trainer.objectives.bases.rows import to_json as _to_json

MAX_KNOWN: Final = 100_000
"""Most rows whose hashes are kept, to tell new rows from known ones."""
MAX_SAMPLED: Final = 10_000
"""Most rows that are compared, on each side."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_EXAMPLES: Final[Mapping[str, Any]] = {
    "label": "yes",
    "labels": ["yes"],
    "number": 1.0,
    "numbers": [1.0],
    "record": {},
    "records": [],
}
"""A value of a column by what it holds, if that is no text."""
NOTHING_READ: Final = "[]"
"""What `ComparedColumns.describe_reading` returns without an objective."""
_ROUND_BITS: Final = 3
"""Bits of a round hash: at most a quarter more rows are below it."""
WRITTEN_FORM: Final = 1
"""Hashes of values as they are written: releases of earlier versions have these."""
READ_FORM: Final = 2
"""Hashes of what the objective reads and learns of a row, by `Objective.content`."""
INPUT_FORM: Final = 3
"""Hashes of that without what is only learned, such as a label, by `Objective.input_content`."""
NO_LABEL: Final = "(no label)"
MAX_LABELS: Final = 10_000
"""Most labels of a column; with more, its values are no labels, but answers."""
BUCKETS: Final = 2**17
MAX_FEATURES: Final = 256
"""Most features of a row; of longer texts the smallest ones, which are the same in all texts that have them."""
_MAX_CHARACTERS = 20_000
_FEWEST_IDS = 20
_DIFFERENT_IDS = 0.95
_DIFFERENT_IF_ASCENDING = 0.5
_LARGEST_ID = 2.0**64
_LARGEST_EXACT = 2.0**53
"""Above it, doubles do not tell neighbouring whole numbers apart."""
_NO_SPACES = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\W{_NO_SPACES}]+")
"""A word; in scripts without spaces, a character."""


@dataclass(frozen=True)
class ComparedColumns:
    """The columns that are compared. The content of a row is what the objective reads."""

    labels: tuple[str, ...]
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    group_by: Mapping[str, bool]
    listed: str = ""
    """One of `texts` whose lists or records have labels, as `Objective.row_labels` finds them; empty if there is none."""
    objective: Objective[Any] | None = field(default=None, compare=False)
    """It says what the content of a row is; without one, the values as they are written are."""
    learned_numbers: tuple[str, ...] = ()
    """The columns of numbers that the objective learns."""
    identifiers: tuple[str, ...] = ()
    """Columns of numbers that are not compared, because they look like identifiers."""
    form: int = field(default=WRITTEN_FORM, compare=False)
    """`READ_FORM`, `INPUT_FORM` or `WRITTEN_FORM`: what is hashed of a row."""

    @classmethod
    def of_objective(cls, objective: Objective[Any]) -> ComparedColumns:
        """Return the columns that the objective reads."""
        kinds = objective.columns()
        has_lists = objectives.overrides_method(objective, "row_labels") and "label" not in kinds.values()
        lists = [column for column, kind in kinds.items() if kind in ("labels", "records") and has_lists]
        listed = min(lists, key=lambda column: kinds[column], default="")
        numbers = tuple(column for column, kind in kinds.items() if kind == "number")
        return cls(
            tuple(column for column, kind in kinds.items() if kind == "label"),
            tuple(column for column, kind in kinds.items() if kind not in ("label", "number")),
            numbers,
            {},
            listed,
            objective,
            numbers,
            form=READ_FORM,
        )

    @classmethod
    def of(cls, rows: SplitRows, objective: Objective[Any], ignore: Sequence[str]) -> ComparedColumns:
        """Return these, the other columns of numbers without those in `ignore`, and what says that rows belong together."""
        found = cls.of_objective(objective)
        others = {ROW_ID, *objective.columns(), *rows.group_by, *ignore}
        numbers = (field.name for field in rows.schema if types.is_integer(field.type) or types.is_floating(field.type))
        further = tuple(name for name in numbers if name not in others)
        return replace(found, numbers=found.numbers + further, group_by=rows.group_by)

    @property
    def labelled(self) -> list[str]:
        return [*self.labels, *filter(None, [self.listed])]

    def labels_of(self, row: Mapping[str, Any]) -> list[list[str]]:
        """Return the labels of a row in each of the columns with labels; a row without any has `NO_LABEL`."""
        listed = [self._labels_in_list(row) or [NO_LABEL]] if self.listed else []
        return [*([str(row[column]).strip()] for column in self.labels), *listed]

    def in_form(self, form: int) -> ComparedColumns:
        """Return the same columns for hashes of a form: with `WRITTEN_FORM`, as releases of earlier versions have them."""
        return replace(self, form=form)

    def contents(self, values: Sequence[Sequence[Any]]) -> Iterator[Iterable[Any]]:
        """Yield what is hashed of each row, in the order of `content`, of the values of these columns."""
        if self.form == WRITTEN_FORM:
            yield from zip(*values, strict=True)
            return
        assert self.objective is not None
        is_input = self.form == INPUT_FORM
        read, columns = (
            (objectives.input_of_row, self.inputs) if is_input else (objectives.content_of_row, self.content)
        )
        for row in zip(*values, strict=True):
            found = read(self.objective, dict(zip(self.content, row, strict=True)))
            yield [found.get(column) for column in columns]

    def values_of(self, batch: pa.RecordBatch, column: str) -> list[Any]:
        """Return the values of a column as they are written: of records that say yes or no of labels, the labels.

        A new label, of which then all records say something, makes no row a new one.
        """
        values = values_of_column(batch[column])
        if column != self.listed:
            return values
        return [sorted({*self._labels_in_list({column: v})}) if isinstance(v, Mapping) else v for v in values]

    def _labels_in_list(self, row: Mapping[str, Any]) -> list[str]:
        assert self.objective is not None
        return [as_learned(label, self.objective.state_of) for label in self.objective.row_labels(row)]

    def settings(self, rows: SplitRows, names: Iterable[str]) -> dict[str, Any]:
        """Return what work on these columns depends on beside the shard, as JSON."""
        types = [(name, str(rows.schema.field(name).type)) for name in names]
        options = self.objective.options.model_dump(mode="json") if self.objective else {}
        name = type(self.objective).__module__
        return {"types": types, "labels": self.labelled, "objective": name, "options": options, "form": self.form}

    @property
    def content(self) -> list[str]:
        """The columns that tell two rows apart."""
        return [*self.labels, *self.texts, *self.learned_numbers]

    def describe_reading(self) -> str:
        """Return, as JSON, what the objective makes of the inputs of an example, by which two that read the same columns in another way are told apart.

        One may take two texts for a pair in either order, for example, and another one for a question and its answer.
        """
        if self.objective is None:
            return NOTHING_READ
        kinds = self.objective.columns()
        letters = dict(zip(self.content, reversed(_LETTERS), strict=False))
        example = {name: _EXAMPLES.get(kind, letters.get(name, "")) for name, kind in kinds.items()}
        found = objectives.input_of_row(self.objective, example)
        return json.dumps([found.get(name) for name in self.inputs])

    @property
    def inputs(self) -> list[str]:
        """Those of them that say what a model is given."""
        targets = self.objective.target_columns() if self.objective else self.labels
        return [column for column in self.content if column not in targets]

    @property
    def has_targets(self) -> bool:
        """Whether two rows can differ although a model is given the same of both."""
        has_own_form = self.objective is not None and objectives.overrides_method(self.objective, "input_content")
        return has_own_form or self.inputs != self.content


@dataclass
class SmallestHashes:
    """The different rows with the smallest content hashes."""

    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    """(K,), ascending."""
    row_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """(K,), of the first row with each hash."""
    is_whole: bool = True
    """Whether no row was left out."""

    def ids_below_round_hash(self, count: int) -> NDArray[np.int64]:
        """Return the ids of the first `count` rows, and of those up to the next round hash: of a shard, they stay the same as others are added."""
        last = int(self.hashes[:count][-1]) if len(self.hashes) else 0
        unit = max(0, last.bit_length() - _ROUND_BITS)
        return self.row_ids[: np.searchsorted(self.hashes, np.uint64(last >> unit << unit | (1 << unit) - 1), "right")]

    def add(self, hashes: NDArray[np.uint64], row_ids: NDArray[np.int64]) -> None:
        if len(self.hashes) == MAX_KNOWN:
            small = hashes < self.hashes[-1]
            self.is_whole &= bool(np.isin(hashes[~small], self.hashes[-1:]).all())
            hashes, row_ids = hashes[small], row_ids[small]
        if len(hashes):
            found, first = np.unique(np.concatenate([self.hashes, hashes]), return_index=True)
            self.is_whole &= len(found) <= MAX_KNOWN
            self.hashes = found[:MAX_KNOWN]
            self.row_ids = np.concatenate([self.row_ids, row_ids])[first[:MAX_KNOWN]]


@dataclass(frozen=True)
class RowScan:
    rows: int
    smallest: SmallestHashes
    labels: Mapping[str, Mapping[int, int]]
    """Number of rows by hash of the label, for each label column with at most `MAX_LABELS`."""


@dataclass(frozen=True)
class SampledRows:
    """N rows as they are compared, in ascending order of their content hashes."""

    row_ids: NDArray[np.int64]
    groups: NDArray[np.uint64] | None
    """(N,) hash of what says that rows belong together; None if each row is on its own."""
    labels: Mapping[str, Sequence[Sequence[str]]]
    """The labels of each row, one or more."""
    lengths: Mapping[str, NDArray[np.float64]]
    """Length of each text in characters, (N,)."""
    numbers: Mapping[str, NDArray[np.float64]]
    """(N,); NaN where there is none."""
    features: Sequence[Sequence[int]]
    """The features of each row, ascending."""


def scan_rows(rows: SplitRows, columns: ComparedColumns, workers: ShardWorkers) -> RowScan:
    """Look at all rows once, in memory that does not grow with them; what was seen of a shard is kept for the next run."""
    settings = columns.settings(rows, columns.content)
    works = [ShardTask(own, hash_settings(work="drift", shard=own.shard.sha256, **settings)) for own in rows.shards]
    smallest, labels = SmallestHashes(), {column: Counter[int]() for column in columns.labelled}
    all_found = workers.run(partial(scan_shard, columns), works, what="shards (drift)")
    for shard, found in zip(rows.manifest.shards, all_found, strict=True):
        smallest.add(found.smallest.hashes, found.smallest.row_ids + shard.first_row_id)
        smallest.is_whole &= found.smallest.is_whole
        for column in tuple(labels):
            labels[column].update(found.labels.get(column, {}))
            if column not in found.labels or len(labels[column]) > MAX_LABELS:
                del labels[column]
    return RowScan(len(rows), smallest, labels)


def scan_shard(columns: ComparedColumns, rows: SplitRows) -> RowScan:
    """Look at the rows of one shard; the row_ids of what is found begin at 0."""
    smallest = SmallestHashes()
    counts = {column: Counter[str]() for column in columns.labelled}
    for places, hashes, values in hash_contents(columns, rows):
        smallest.add(hashes, places - rows.shard.first_row_id)
        for column, own in zip(columns.labels, values, strict=False):  # the labels come first
            counts[column].update(str(label).strip() for label in own)
        if columns.listed:
            found = (dict(zip(columns.content, row, strict=True)) for row in zip(*values, strict=True))
            counts[columns.listed].update(label for row in found for label in {*columns.labels_of(row)[-1]})
    labels = {
        column: {label_hash(label): number for label, number in of_column.items()}
        for column, of_column in counts.items()
        if len(of_column) <= MAX_LABELS
    }
    return RowScan(len(rows), smallest, labels)


def hash_contents(
    columns: ComparedColumns, rows: SplitRows
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], list[list[Any]]]]:
    """Yield of each batch: the `row_id`s, the hashes of the contents, and the values of `columns.content`."""
    for batch in rows.batches([ROW_ID, *columns.content]):
        reset_idle_timer()
        values = [columns.values_of(batch, column) for column in columns.content]
        # `hash_row_values` of each row
        texts = (_to_json(list(content)) for content in columns.contents(values))
        digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
        yield batch[ROW_ID].to_numpy(), np.frombuffer(b"".join(digests), ">u8").astype(np.uint64), values


def hash_rows(rows: SplitRows, columns: ComparedColumns) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the `row_id`s of all rows, (N,), and the hashes of their contents, (N,)."""
    row_ids, hashes = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for ids, own, _ in hash_contents(columns, rows):
        row_ids.append(ids)
        hashes.append(own)
    return np.concatenate(row_ids), np.concatenate(hashes)


def read_compared_values(
    rows: SplitRows,
    columns: ComparedColumns,
    row_ids: NDArray[np.int64],
    workers: ShardWorkers,
    read: NDArray[np.int64] | None = None,
) -> SampledRows:
    """Read the rows with these ids, and return what is compared of them, in the order of `row_ids`.

    What was read of a shard is kept for the next run, which finds it if it reads the same rows of the shard. `read` names them: those of
    `row_ids`, and more.
    """
    chosen = np.sort(row_ids if read is None else read)
    starts = np.searchsorted(chosen, [shard.first_row_id for shard in rows.manifest.shards])
    settings = columns.settings(rows, dict.fromkeys([*columns.content, *columns.numbers, *columns.group_by]))
    settings |= {"numbers": columns.numbers, "groups": columns.group_by, "work": "sampled rows"}
    works = [
        ShardTask((own, ids), hash_settings(shard=own.shard.model_dump(), ids=ids.tolist(), **settings))
        for own, ids in zip(rows.shards, np.split(chosen, starts)[1:], strict=True)
        if len(ids)
    ]
    found: dict[int, Any] = {}
    for own in workers.run(partial(_compared, columns), works, what="shards (sampled rows)"):
        found |= own
    groups, labels, lengths, numbers, features = zip(*(found[row_id] for row_id in row_ids.tolist()), strict=True)
    return SampledRows(
        row_ids,
        np.array(groups, np.uint64) if columns.group_by else None,
        dict(zip(columns.labelled, map(list, zip(*labels, strict=True)), strict=True)),
        dict(zip(columns.texts, np.array(lengths, float, order="F").T, strict=True)),
        dict(zip(columns.numbers, np.array(numbers, float, order="F").T, strict=True)),
        list(features),
    )


def _compared(columns: ComparedColumns, work: tuple[SplitRows, NDArray[np.int64]]) -> dict[int, tuple[Any, ...]]:
    """Return by row_id what is compared of some rows of a shard: group, labels, lengths, numbers and features."""
    rows, row_ids = work
    found = {}
    for row in rows.pick(row_ids, [*columns.content, *columns.numbers, *columns.group_by]):
        texts = [join_texts_in_value(row[column]) for column in columns.texts]
        found[row[ROW_ID]] = (
            hash_row_values((group_values_of_row(row, columns.group_by) or {ROW_ID: row[ROW_ID]}).values()),
            columns.labels_of(row),
            [len(text) for text in texts],
            [np.nan if row[column] is None else row[column] for column in columns.numbers],
            hashed_ngrams(texts),
        )
    return found


def without_identifier_columns(columns: ComparedColumns, rows: SampledRows) -> tuple[ComparedColumns, SampledRows]:
    """Return the same without the columns of numbers that look like identifiers in these rows."""
    found = [name for name, values in rows.numbers.items() if look_like_identifiers(values[np.argsort(rows.row_ids)])]
    numbers = {name: values for name, values in rows.numbers.items() if name not in found}
    return replace(columns, numbers=tuple(numbers), identifiers=tuple(found)), replace(rows, numbers=numbers)


def look_like_identifiers(values: NDArray[np.float64]) -> bool:
    """Whether numbers, in the order of their rows, look like identifiers or times, which say nothing about a row.

    So do whole numbers that nearly all differ, those of up to 64 bits that are too large for a double, whether or not rounding has made
    some of them equal, and numbers that never fall from row to row and of which at least half differ.
    """
    present = values[np.isfinite(values)]
    if len(present) < _FEWEST_IDS:
        return False
    different = len(np.unique(present)) / len(present)
    size = 2 * float(np.median(np.abs(present) / 2))  # a mean of two must not overflow
    if size <= _LARGEST_ID and (present % 1 == 0).all() and (size > _LARGEST_EXACT or different >= _DIFFERENT_IDS):
        return True
    return bool((present[1:] >= present[:-1]).all() and different >= _DIFFERENT_IF_ASCENDING)


@lru_cache(maxsize=10_000)
def label_hash(label: str) -> int:
    return hash_row_values([label])


def join_texts_in_value(value: Any) -> str:
    """Return the text in a column; of a list of records, all texts in it."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return " ".join(filter(None, map(join_texts_in_value, value.values())))
    return " ".join(filter(None, map(join_texts_in_value, value))) if isinstance(value, list) else ""


def hashed_ngrams(texts: Iterable[str]) -> list[int]:
    """Return the hashed words and pairs of neighbouring words of a row, as numbers below `BUCKETS`, ascending."""
    found: set[int] = set()
    for column, text in enumerate(texts):
        words = _WORD.findall(text[:_MAX_CHARACTERS].lower())
        for gram in (*words, *map(" ".join, itertools.pairwise(words))):
            found.add(zlib.crc32(f"{column} {gram}".encode()) % BUCKETS)
    return sorted(found)[:MAX_FEATURES]

"""The profile of the rows that a model learned from: what a later run needs to see whether its new rows are like them.

A release carries it as one Parquet file (not by that suffix: the Hub's client warns of data sets in a model's
repository). It holds no text: labels, words and whole rows are hashes. What was measured on the same row stands apart:
each column of the data is sorted by itself, so that no row can be put together again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np

from tasks.drift.profile_limits import Header, check, check_size, check_strings
from tasks.drift.rows import MAX_SAMPLED, Columns, SampledRows, Scan, label_hash

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

SCHEMA: Final = 1
_DAMAGE: Final = (
    KeyError,
    TypeError,
    OverflowError,
    RecursionError,
    StopIteration,
    UnicodeDecodeError,
    json.JSONDecodeError,
)
_KEY: Final = b"evergreen.profile"
_STRINGS: Final = ["kind", "column"]
Kind = Literal["label", "length", "number", "text"]


@dataclass(frozen=True)
class Sample:
    """One measure of N sampled rows."""

    kind: Kind
    column: str
    """Empty for `text`, which is all columns together."""
    values: Any
    """(N,) hashes of labels, or numbers; of `text`, the list of the features of each row. Of lists of labels, all of them, (M,)."""
    groups: NDArray[np.uint64] | None
    """(N,) numbers or hashes of the rows' groups; None if each row is on its own. The labels of one list are a group, too."""

    def sorted(self) -> Self:
        """Return the same values in ascending order, groups numbered anew: nothing links them to another measure."""
        if self.kind == "text":
            order: Any = sorted(range(len(self.values)), key=lambda i: self.values[i])
            values: Any = [self.values[i] for i in order]
        else:
            order = np.argsort(self.values, kind="stable")
            values = self.values[order]
        groups = None
        if self.groups is not None:
            _, first, numbers = np.unique(self.groups[order], return_index=True, return_inverse=True)
            groups = np.argsort(np.argsort(first)).astype(np.uint64)[numbers]
        return type(self)(self.kind, self.column, values, groups)


def samples(rows: SampledRows) -> Iterator[Sample]:
    """Yield what is compared of some rows."""
    for column, labels in rows.labels.items():
        hashes = np.array([label_hash(label) for own in labels for label in own], np.uint64)
        groups, counts = rows.groups, [len(own) for own in labels]
        if groups is not None or max(counts, default=1) > 1:
            each = np.arange(len(labels), dtype=np.uint64) if groups is None else groups
            groups = np.repeat(each, counts)
        yield Sample("label", column, hashes, groups)
    for column, lengths in rows.lengths.items():
        yield Sample("length", column, lengths, rows.groups)
    for column, numbers in rows.numbers.items():
        present = np.isfinite(numbers)
        if present.any():
            groups = None if rows.groups is None else rows.groups[present]
            yield Sample("number", column, numbers[present], groups)
    yield Sample("text", "", rows.features, rows.groups)


@dataclass(frozen=True)
class Profile:
    """What is known of the rows that a model learned from."""

    rows: int
    """Number of rows of the train split."""
    content: list[str]
    """The columns whose values tell two rows apart."""
    is_whole: bool
    """Whether `known` has all rows."""
    known: NDArray[np.uint64]
    """The smallest content hashes, ascending."""
    labels: Mapping[str, Mapping[int, int]]
    """Number of rows by hash of the label, for each label column."""
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, scanned: Scan, columns: Columns, sampled: SampledRows) -> Self:
        """Make the profile of rows; `sampled` are those with the smallest hashes."""
        assert len(sampled.row_ids) == min(len(scanned.smallest.hashes), MAX_SAMPLED)
        found = tuple(
            one.sorted() for one in samples(sampled) if one.kind != "label" or one.column in scanned.labels
        )  # a column with very many labels has none
        smallest = scanned.smallest
        return cls(scanned.rows, columns.content, smallest.is_whole, smallest.hashes, scanned.labels, found)

    def is_new(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], int]:
        """Return which rows are certainly not among those of the profile, and of how many rows that is known."""
        decidable = np.ones(len(hashes), bool) if self.is_whole else hashes <= self.known[-1]
        return decidable & ~np.isin(hashes, self.known), int(decidable.sum())

    def save(self, path: Path) -> None:
        """Write the profile; equal profiles give equal bytes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        records: list[dict[str, Any]] = [{"kind": "known", "hashes": self.known}]
        for column, counts in self.labels.items():
            codes = sorted(counts)
            numbers = np.array([counts[code] for code in codes], float)
            hashes = np.array(codes, np.uint64)
            records.append({"kind": "label counts", "column": column, "hashes": hashes, "values": numbers})
        for one in self.samples:
            place = {"label": "hashes", "text": "features"}.get(one.kind, "values")
            records.append({"kind": one.kind, "column": one.column, place: one.values, "groups": one.groups})
        header = {"schema": SCHEMA, "rows": self.rows, "content": self.content, "is_whole": self.is_whole}
        schema = _schema().with_metadata({_KEY: json.dumps(header).encode()})
        pq.write_table(pa.Table.from_pylist(records, schema=schema), path, compression="zstd")

    @classmethod
    def load(cls, content: bytes) -> Self:
        """Read a profile.

        Raises:
            ValueError: it is damaged, or another version of Evergreen wrote it.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(io.BytesIO(content), read_dictionary=_STRINGS)  # a repeated string is in memory once
            check_size(file.metadata, content)
            if not file.schema_arrow.equals(_schema(pa.dictionary(pa.int32(), pa.string()))):
                raise ValueError("it is damaged: its columns are not those of a profile")
            found = json.loads(file.schema_arrow.metadata[_KEY])
            if found["schema"] != SCHEMA:
                raise ValueError(f"it has schema {found['schema']!r:.20}, not {SCHEMA}")
            header = Header.of(found)
            table = file.read(use_threads=False)
            check_strings(table.select(_STRINGS))
            records = table.to_pylist()
            known = np.array(next(one["hashes"] for one in records if one["kind"] == "known"), np.uint64)
            labels = {
                one["column"]: _counts(one["hashes"], one["values"]) for one in records if one["kind"] == "label counts"
            }
            measures = tuple(_sample(one) for one in records if one["kind"] not in {"known", "label counts"})
            profile = cls(header.rows, header.content, header.is_whole, known, labels, measures)
            check(known, labels, measures)
        except (pa.ArrowException, OSError, *_DAMAGE) as error:
            raise ValueError(f"it is damaged: {type(error).__name__}") from error
        return profile


def _schema(strings: pa.DataType | None = None) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            *((name, strings or pa.string()) for name in _STRINGS),
            ("hashes", pa.list_(pa.uint64())),
            ("values", pa.list_(pa.float64())),
            ("features", pa.list_(pa.list_(pa.uint32()))),
            ("groups", pa.list_(pa.uint64())),
        ]
    )


def _counts(hashes: list[int], counts: list[float]) -> dict[int, int]:
    if len(hashes) != len(counts) or not np.isfinite(counts).all():
        raise ValueError("it is damaged: its counts of labels are not counts")
    return dict(zip(hashes, map(int, counts), strict=True))


def _sample(record: Mapping[str, Any]) -> Sample:
    kind: Kind = record["kind"]
    values: Any = record["features"]
    if kind == "label":
        values = np.array(record["hashes"], np.uint64)
    elif kind != "text":
        values = np.array(record["values"], float)
    groups = None if record["groups"] is None else np.array(record["groups"], np.uint64)
    return Sample(kind, record["column"], values, groups)

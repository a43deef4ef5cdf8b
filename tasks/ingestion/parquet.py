"""Raw rows as Parquet shards; one part of the source is in memory.

A part of the source gives one shard for each split that has some of its rows. The columns of a shard are those of its own rows,
so rows of other parts never change it. From batch to batch of a part, and from part to part, columns can widen: a null column gets
its first value, integers become doubles, all else becomes text or JSON, a column is new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from params import DataError
from params.foundation.artifacts import GROUP_BY, TIMES
from params.foundation.hashing import file_sha256
from tasks.ingestion.batches import SourceBatch
from tasks.ingestion.row_limit import check_number_of_columns
from tasks.shards.split_rows import AS_WRITTEN, JSON, SCHEMA, SEEN, conform_to_schema, type_name
from tasks.shards.times import NO_TIME
from trainer.data.shards import ROW, ROW_ID, Shard

GROUP_ROWS = 8192
"""Rows of a Parquet row group. It does not depend on the batches, so the same rows give the same bytes."""


_LARGEST_EXACT = 2**53
"""Above it, doubles do not tell neighbouring integers apart."""
_JSON_TYPES = {'"': "string", "{": "struct", "[": "list", "t": "bool", "f": "bool"}
"""Types by the first letter of JSON; all else is a number."""


@dataclass(frozen=True)
class SourceColumn:
    """A column of some rows."""

    type: pa.DataType
    """Type of the values."""
    stored: pa.DataType
    """Type in shards: JSON, if that of the values would not hold them as they were written."""
    seen: Mapping[str, str]
    """The types that were found, each with the address of the first row that has such a value."""
    is_large: bool = False
    """Whether an integer is too large for a double."""
    is_rounded: bool = False
    """Whether some numbers are doubles, which do not say how they were written."""

    def joined(self, name: str, later: SourceColumn) -> SourceColumn:
        """Return the column of these rows and later ones, with a type that holds the values of both unchanged.

        Raises:
            DataError: there is none: one of them has bytes.
        """
        if types.is_null(self.type) or types.is_null(later.type):
            return later if types.is_null(self.type) else self
        seen = {**self.seen, **later.seen, **self.seen}
        if _is_bytes(self.type) != _is_bytes(later.type):
            before, found = next(iter(self.seen), "list"), next(iter(later.seen), "list")
            where = later.seen.get(found, "")
            what = f"column `{name}` is {found} here, and {before} in the rows before"
            raise DataError(where, what, f"store `{name}` with one type in every row, for example as text")
        shared, is_large = _common_type(self.type, later.type), self.is_large or later.is_large
        if is_large and (types.is_floating(shared) or types.is_uint64(self.type) != types.is_uint64(later.type)):
            shared = pa.string()
        stored = JSON if JSON in (self.stored, later.stored) else shared
        return SourceColumn(shared, stored, seen, is_large, self.is_rounded or later.is_rounded)

    @property
    def is_mixed(self) -> bool:
        """Whether several types were found that have none in common but text, or JSON."""
        return len(self.seen) > 1 and (types.is_string(self.type) or self.type.equals(JSON))

    @property
    def found(self) -> str:
        return " and ".join(f"{kind} ({where})" for kind, where in self.seen.items())

    @property
    def field_metadata(self) -> dict[bytes, str]:
        """What readers need to know besides the type."""
        found = {SEEN: self.found} if len(self.seen) > 1 else {}
        return found | ({AS_WRITTEN: ""} if types.is_floating(self.type) and not self.is_rounded else {})


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return a type that holds the values of both types as they are. If there is no other: text, or JSON for nested values."""
    fields = [pa.schema([("", kind)]) for kind in (first, second)]
    try:
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return JSON if any(kind.equals(JSON) or types.is_nested(kind) for kind in (first, second)) else pa.string()


@dataclass(frozen=True)
class WrittenPart:
    """A part of the source that is written, and the columns of its rows."""

    rows: int
    columns: Mapping[str, SourceColumn]
    shards: Mapping[str, Shard]
    """The shard of each split; their `first_row_id` is 0."""
    earliest_us: int = NO_TIME
    latest_us: int = NO_TIME
    """The first and the last time of its rows."""
    untimed: int = 0
    """Rows without one."""
    left_out: int = 0
    """Rows that `where` leaves out."""
    names: Sequence[str] = ()
    """The columns of its rows as the source calls them."""
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """With `max_rows`, a hash of each row, (rows,)."""


def write_part_shards(
    batches: Iterable[tuple[SourceBatch, Sequence[str]]], folder: Path, number: int, source: str = ""
) -> WrittenPart:
    """Write a part of the source, of which each batch comes with the splits of its rows: `<split>/<number>.parquet` for each split.

    A row that is left out has an empty split. `source` names one of several sources.

    Raises:
        DataError: a column has bytes beside other values.
    """
    columns, tables, rows, left_out = dict[str, SourceColumn](), dict[str, list[pa.Table]](), 0, 0
    for all_rows, all_splits in batches:
        kept = [row for row, split in enumerate(all_splits) if split]
        places, batch, splits = [rows + row for row in kept], all_rows, [all_splits[row] for row in kept]
        rows, left_out = rows + len(all_splits), left_out + len(all_splits) - len(kept)
        if not kept:
            continue
        if len(kept) < len(all_splits):
            chosen_rows = all_rows.rows.take(pa.array(kept, pa.int64()))
            batch = replace(all_rows, rows=chosen_rows, address=partial(_address, all_rows, kept))
        widen_schema_in_place(columns, columns_of_batch(batch, columns))
        table = pa.Table.from_batches([batch.rows]).append_column(ROW, pa.array(places, pa.int32()))
        table = conform_to_schema(table, _schema(columns), batch.address(0))
        for split in dict.fromkeys(splits):
            chosen = [row for row, of in enumerate(splits) if of == split]
            tables.setdefault(split, []).append(table if len(chosen) == len(table) else table.take(chosen))
    name, schema = part_file_name(number, source), _schema(columns)
    shards = {split: _write_tables(own, schema, folder / split / name) for split, own in tables.items()}
    return WrittenPart(rows, columns, shards, left_out=left_out)


def _write_tables(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> Shard:
    """Write tables, to some of which later ones have added columns, as one shard."""
    whole = pa.concat_tables([conform_to_schema(table, schema, path.stem) for table in tables])
    return write_shard(whole.combine_chunks(), path)


def _address(batch: SourceBatch, rows: Sequence[int], i: int) -> str:
    return batch.address(rows[i])


def write_shard(rows: pa.Table, path: Path) -> Shard:
    """Write a shard, and return it; its `first_row_id` is 0."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(rows, path, compression="zstd", row_group_size=GROUP_ROWS)
    return Shard(name=path.name, rows=len(rows), first_row_id=0, sha256=file_sha256(path))


def _schema(columns: Mapping[str, SourceColumn]) -> pa.Schema:
    return pa.schema([(ROW, pa.int32()), *((name, column.stored) for name, column in columns.items())])


def part_file_name(number: int, source: str = "") -> str:
    """Return the name of the files of a part. That of one of several sources does not depend on the others."""
    return f"{source}-{number:05}.parquet" if source else f"{number:05}.parquet"


def widen_schema_in_place(columns: dict[str, SourceColumn], found: Mapping[str, SourceColumn]) -> None:
    """Add the columns of later rows to those of earlier rows.

    Raises:
        DataError: a column has bytes beside other values, or there are too many columns.
    """
    for name, column in found.items():
        columns[name] = columns[name].joined(name, column) if name in columns else column
        check_number_of_columns(len(columns), next(iter(column.seen.values()), f"column `{name:.100}`"))


def columns_of_batch(batch: SourceBatch, known: Mapping[str, SourceColumn]) -> dict[str, SourceColumn]:
    """Return the columns of a batch that are new, or that have other values than the known ones."""
    found = {}
    for stored, values in zip(batch.rows.schema, batch.rows.columns, strict=True):
        kind, before = batch.types.get(stored.name, stored.type), known.get(stored.name)
        is_large = types.is_integer(kind) and _largest(values) > _LARGEST_EXACT
        if before and before.type.equals(kind) and before.stored.equals(stored.type) and before.is_large >= is_large:
            continue
        rows = _first_row_of_each_type(stored, kind, values)
        seen = {name: batch.address(row) for name, row in rows.items()}
        found[stored.name] = SourceColumn(kind, stored.type, seen, is_large, types.is_floating(stored.type))
    return found


def _largest(integers: pa.Array) -> int:
    """Return the largest absolute value; 0 if there is none."""
    return max(abs(int(end or 0)) for end in pc.min_max(integers).as_py().values())


def _first_row_of_each_type(stored: pa.Field, kind: pa.DataType, values: pa.Array) -> dict[str, int]:
    """Return the types that a column has in a batch, each with the first row that has it; empty lists are of any type."""
    if stored.type.equals(JSON) and not types.is_floating(kind):
        names = [text and _json_type(text) for text in values.cast(pa.string()).to_pylist()]
        return {name: names.index(name) for name in dict.fromkeys(names) if name}
    if kind.equals(pa.list_(pa.null())):
        return {}
    return {type_name(kind): max(values.is_valid().index(pa.scalar(value=True)).as_py(), 0)}


def _json_type(text: str) -> str:
    return _JSON_TYPES.get(text[0]) or ("double" if {*".eE"}.intersection(text) else "int64")


def fields_of_columns(columns: Mapping[str, SourceColumn]) -> list[pa.Field]:
    return [pa.field(name, own.type, metadata=own.field_metadata or None) for name, own in columns.items()]


def write_split_schema(
    folder: Path,
    columns: Mapping[str, SourceColumn],
    group_by: Iterable[str] = (),
    times: Mapping[str, Any] | None = None,
) -> None:
    """Write the columns of a split, by which of them its rows belong together, and what is known of their times."""
    schema = pa.schema([(ROW_ID, pa.int64()), *fields_of_columns(columns)])
    known = {GROUP_BY: list(group_by), TIMES: times}
    metadata = {name: json.dumps(value) for name, value in known.items() if value}
    pq.write_metadata(schema.with_metadata(metadata or None), folder / SCHEMA)

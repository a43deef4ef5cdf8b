"""Raw rows as Parquet shards, written in memory that does not grow with the number of rows.

A part of the source gives one shard for each split that has some of its rows. The columns of a shard are those of its own rows,
so rows of other parts never change it. While it is written, its columns can still widen (a null column gets its first value,
integers become doubles, a column is new): then the file so far is copied.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from params.foundation.artifacts import GROUP_BY
from params.foundation.hashing import file_sha256
from tasks.ingestion.batches import Batch, common_type, type_error
from tasks.shards.split_rows import SCHEMA, conform
from trainer.data.shards import ROW, ROW_ID, Manifest, Shard

GROUP_ROWS = 8192
"""Rows of a Parquet row group. It does not depend on the batches, so the same rows give the same bytes."""
GROUP_BYTES = 64 << 20
"""The most bytes of a row group, for very long rows."""


@dataclass(frozen=True)
class Column:
    """A column of some rows."""

    type: pa.DataType
    where: str
    """Address of the first row that has a value, for errors."""


@dataclass(frozen=True)
class WrittenPart:
    """A part of the source that is written."""

    rows: int
    columns: Mapping[str, Column]
    """The columns of its rows."""
    shards: Mapping[str, Shard]
    """The shard of each split; their `first_row_id` is 0."""


class PartWriter:
    """Writes the rows of a part of the source: `<split>/<number>.parquet` for each split that has some of them."""

    def __init__(self, folder: Path, number: int) -> None:
        self._columns: dict[str, Column] = {}
        self._rows = 0
        self._folder = folder
        self._name = part_name(number)
        self._files: dict[str, _File] = {}

    def write(self, batch: Batch, splits: Sequence[str]) -> None:
        """Append each row of `batch` to the split that `splits` holds for it.

        Raises:
            DataError: a column has a type that does not fit the earlier rows.
        """
        widen(self._columns, _columns(batch, self._columns))
        places = pa.array(range(self._rows, self._rows + len(batch.rows)), pa.int32())
        self._rows += len(batch.rows)
        table = pa.Table.from_batches([batch.rows]).append_column(ROW, places)
        table = conform(table, self._schema, batch.address(0))
        for split in dict.fromkeys(splits):
            if split not in self._files:
                (self._folder / split).mkdir(exist_ok=True)
                self._files[split] = _File(self._folder / split / self._name)
            chosen = [row for row, of in enumerate(splits) if of == split]
            self._files[split].write(table if len(chosen) == len(table) else table.take(chosen), self._schema)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([(ROW, pa.int32()), *((name, column.type) for name, column in self._columns.items())])

    def finish(self) -> WrittenPart:
        """Write what is left, and return the part."""
        shards = {}
        for split, file in self._files.items():
            file.finish(self._schema)
            shards[split] = Shard(name=self._name, rows=file.rows, first_row_id=0, sha256=file_sha256(file.path))
        return WrittenPart(self._rows, self._columns, shards)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()


def part_name(number: int) -> str:
    """Return the name of the files of a part."""
    return f"{number:05}.parquet"


def widen(columns: dict[str, Column], found: Mapping[str, Column]) -> None:
    """Add the columns of later rows to those of earlier rows.

    Raises:
        DataError: a column has a type that does not fit the earlier rows.
    """
    for name, column in found.items():
        before = columns.get(name)
        if before is None or pa.types.is_null(before.type):
            columns[name] = column
            continue
        shared = common_type(before.type, column.type)
        if shared is None:
            raise type_error(column.where, name, column.type, before.type)
        columns[name] = Column(shared, before.where)


def _columns(batch: Batch, known: Mapping[str, Column]) -> dict[str, Column]:
    """The columns of a batch that are new, or that have another type than the known ones."""
    found = {}
    for field, values in zip(batch.rows.schema, batch.rows.columns, strict=True):
        before = known.get(field.name)
        if before is None or not before.type.equals(field.type):
            row = values.is_valid().index(pa.scalar(value=True)).as_py()
            found[field.name] = Column(field.type, batch.address(max(row, 0)))
    return found


def write_schema(folder: Path, columns: Mapping[str, Column], group_by: Iterable[str]) -> None:
    """Write the columns of a split, and by which of them its rows belong together."""
    schema = pa.schema([(ROW_ID, pa.int64()), *((name, column.type) for name, column in columns.items())])
    names = list(group_by)
    pq.write_metadata(schema.with_metadata({GROUP_BY: json.dumps(names)} if names else None), folder / SCHEMA)


def check_types(manifest: Manifest, columns: Mapping[str, Column]) -> None:
    """Check that the split's columns can hold the values of shards whose columns have other types, such as integers.

    Raises:
        DataError: one cannot.
    """
    for shard in manifest.shards:
        path = manifest.path(shard)
        with pq.ParquetFile(path) as file:
            types = {field.name: field.type for field in file.schema_arrow if field.name != ROW}
            wider = pa.schema(
                [(name, columns[name].type) for name in types if not types[name].equals(columns[name].type)]
            )
            for batch in file.iter_batches(GROUP_ROWS, columns=wider.names) if wider.names else ():
                conform(pa.Table.from_batches([batch]), wider, f"{path.parent.name}/{shard.name}")


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def write(self, table: pa.Table, schema: pa.Schema) -> None:
        self.rows += len(table)
        self._pending.append(table)
        self._pending_rows += len(table)
        self._pending_bytes += table.nbytes
        while self._pending_rows >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._write_group(schema)

    def finish(self, schema: pa.Schema) -> None:
        """Write the pending rows and close the file."""
        while self._pending_rows:
            self._write_group(schema)
        self._open(schema).close()
        self._writer = None

    def close(self) -> None:
        """Close an unfinished file; the folder is about to be deleted, so a failure does not matter."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._writer = None

    def _write_group(self, schema: pa.Schema) -> None:
        pending = pa.concat_tables([conform(table, schema, self.path.stem) for table in self._pending])
        self._open(schema).write_table(pending.slice(0, GROUP_ROWS).combine_chunks(), row_group_size=GROUP_ROWS)
        rest = pending.slice(GROUP_ROWS)
        self._pending = [rest] if len(rest) else []
        self._pending_rows, self._pending_bytes = len(rest), rest.nbytes

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        if self._writer is not None and self._writer.schema.equals(schema):
            return self._writer
        narrow = self.path.with_suffix(".narrow")
        if self._writer is not None:
            self._writer.close()
            self.path.rename(narrow)
        self._writer = pq.ParquetWriter(self.path, schema, compression="zstd")
        if narrow.exists():
            with pq.ParquetFile(narrow) as written:
                for group in range(written.num_row_groups):
                    self._writer.write_table(
                        conform(written.read_row_group(group), schema, self.path.stem), row_group_size=GROUP_ROWS
                    )
            narrow.unlink()
        return self._writer

"""Parquet files of one schema, written as rows come, in memory that does not grow with their number.

The schema is that of the rows so far. When it widens (a null column gets its first value, integers become doubles, a
column is new) a file that was begun is copied into the wider one; that happens a few times per column at most.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from params import DataError
from tasks.ingestion.batches import Batch, type_error, widest

GROUP_ROWS = 8192
"""Rows of a Parquet row group, whatever the batches were: the same rows give the same bytes."""
GROUP_BYTES = 64 << 20
"""A group of very long rows ends earlier."""


class ParquetFolder:
    """One `<name>.parquet` for each of `names` in `folder`, of the same columns."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.schema = pa.schema([])
        self.rows = dict.fromkeys(names, 0)
        self._files = {name: _File(folder / f"{name}.parquet") for name in names}

    def path(self, name: str) -> Path:
        """Where the rows of `name` are."""
        return self._files[name].path

    def write(self, batch: Batch, names: Sequence[str]) -> None:
        """Append each row of `batch` to the file that `names` gives for it.

        Raises:
            DataError: a column's type is not that of the rows before.
        """
        self._widen(batch)
        table = _conform(pa.Table.from_batches([batch.rows]), self.schema, batch.address(0))
        for name in dict.fromkeys(names):
            taken = [row for row, of in enumerate(names) if of == name]
            self.rows[name] += len(taken)
            self._files[name].write(table if len(taken) == len(table) else table.take(taken), self.schema)

    def _widen(self, batch: Batch) -> None:
        for field in batch.rows.schema:
            at = self.schema.get_field_index(field.name)
            if at < 0:
                self.schema = self.schema.append(pa.field(field.name, field.type))
                continue
            before = self.schema.field(at).type
            together = widest(before, field.type)
            if together is None:
                values = batch.rows.column(field.name)
                row = values.is_valid().index(pa.scalar(value=True)).as_py()
                raise type_error(batch.address(max(row, 0)), field.name, field.type, before)
            self.schema = self.schema.set(at, pa.field(field.name, together))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                for file in self._files.values():
                    file.finish(self.schema)
        finally:
            for file in self._files.values():
                file.close()


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def write(self, table: pa.Table, schema: pa.Schema) -> None:
        self._pending.append(table)
        self._pending_rows += len(table)
        self._pending_bytes += table.nbytes
        while self._pending_rows >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._write_group(schema)

    def finish(self, schema: pa.Schema) -> None:
        """Write what waits, and close; a file without rows has the columns at least."""
        while self._pending_rows:
            self._write_group(schema)
        self._open(schema)
        assert self._writer is not None
        self._writer.close()
        self._writer = None

    def close(self) -> None:
        """Let go of a file that was not finished, and perhaps cannot be: the folder is thrown away."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._writer = None

    def _write_group(self, schema: pa.Schema) -> None:
        waiting = pa.concat_tables([_conform(table, schema, self.path.stem) for table in self._pending])
        self._open(schema)
        assert self._writer is not None
        self._writer.write_table(waiting.slice(0, GROUP_ROWS).combine_chunks(), row_group_size=GROUP_ROWS)
        rest = waiting.slice(GROUP_ROWS)
        self._pending = [rest] if len(rest) else []
        self._pending_rows, self._pending_bytes = len(rest), rest.nbytes

    def _open(self, schema: pa.Schema) -> None:
        if self._writer is not None and self._writer.schema.equals(schema):
            return
        narrow = self.path.with_suffix(".narrow")
        if self._writer is not None:
            self._writer.close()
            self.path.rename(narrow)
        self._writer = pq.ParquetWriter(self.path, schema, compression="zstd")
        if narrow.exists():
            with pq.ParquetFile(narrow) as written:
                for group in range(written.num_row_groups):
                    self._writer.write_table(
                        _conform(written.read_row_group(group), schema, self.path.stem), row_group_size=GROUP_ROWS
                    )
            narrow.unlink()


def _conform(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """`table` with the columns and types of `schema`; columns that it lacks are null."""
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
            continue
        try:
            columns.append(table.column(field.name).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            what = f"column `{field.name}` is {field.type} in other rows, which cannot hold all values here: {error}"
            raise DataError(where, what, f"give all rows the same type in `{field.name}`") from error
    return pa.Table.from_arrays(columns, schema=schema)

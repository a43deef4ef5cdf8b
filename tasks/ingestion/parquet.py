"""Parquet files with one schema, written in memory that does not grow with the number of rows.

The schema is that of the rows so far. When it widens (a null column gets its first value, integers become doubles, a
column is new), the file so far is copied with the wider schema. That happens at most a few times per column.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from params import DataError
from params.artifacts import GROUP_BY
from tasks.ingestion.batches import Batch, common_type, type_error

GROUP_ROWS = 8192
"""Rows of a Parquet row group. It does not depend on the batches, so the same rows give the same bytes."""
GROUP_BYTES = 64 << 20
"""The most bytes of a row group, for very long rows."""


class ParquetFolder:
    """Files `<name>.parquet` in one folder, all with the same columns.

    Each file says in its metadata by which columns its rows belong together, see tasks.evaluation.groups.
    """

    def __init__(self, folder: Path, names: Sequence[str], *, group_by: Sequence[str] = ()) -> None:
        self.schema = pa.schema([])
        self.rows = dict.fromkeys(names, 0)
        metadata = {GROUP_BY: json.dumps(list(group_by))} if group_by else {}
        self._files = {name: _File(folder / f"{name}.parquet", metadata) for name in names}

    def path(self, name: str) -> Path:
        """Path of the file `name`."""
        return self._files[name].path

    def write(self, batch: Batch, names: Sequence[str]) -> None:
        """Append each row of `batch` to the file that `names` holds for it.

        Raises:
            DataError: a column has a type that does not fit the earlier rows.
        """
        self._widen(batch)
        table = _conform(pa.Table.from_batches([batch.rows]), self.schema, batch.address(0))
        for name in dict.fromkeys(names):
            chosen = [row for row, file in enumerate(names) if file == name]
            self.rows[name] += len(chosen)
            self._files[name].write(table if len(chosen) == len(table) else table.take(chosen), self.schema)

    def _widen(self, batch: Batch) -> None:
        types = {field.name: field.type for field in self.schema}
        for field in batch.rows.schema:
            if field.name not in types:
                types[field.name] = field.type
                continue
            before = types[field.name]
            shared = common_type(before, field.type)
            if shared is None:
                values = batch.rows.column(field.name)
                row = values.is_valid().index(pa.scalar(value=True)).as_py()
                raise type_error(batch.address(max(row, 0)), field.name, field.type, before)
            types[field.name] = shared
        self.schema = pa.schema(types)

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
    def __init__(self, path: Path, metadata: Mapping[str, str]) -> None:
        self.path = path
        self._metadata = dict(metadata)
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
        """Write the pending rows and close the file; without rows it still gets the columns."""
        while self._pending_rows:
            self._write_group(schema)
        self._open(schema)
        assert self._writer is not None
        self._writer.close()
        self._writer = None

    def close(self) -> None:
        """Close an unfinished file; the folder is about to be deleted, so a failure does not matter."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._writer = None

    def _write_group(self, schema: pa.Schema) -> None:
        pending = pa.concat_tables([_conform(table, schema, self.path.stem) for table in self._pending])
        self._open(schema)
        assert self._writer is not None
        self._writer.write_table(pending.slice(0, GROUP_ROWS).combine_chunks(), row_group_size=GROUP_ROWS)
        rest = pending.slice(GROUP_ROWS)
        self._pending = [rest] if len(rest) else []
        self._pending_rows, self._pending_bytes = len(rest), rest.nbytes

    def _open(self, schema: pa.Schema) -> None:
        if self._writer is not None and self._writer.schema.equals(schema):
            return
        narrow = self.path.with_suffix(".narrow")
        if self._writer is not None:
            self._writer.close()
            self.path.rename(narrow)
        self._writer = pq.ParquetWriter(self.path, schema.with_metadata(self._metadata or None), compression="zstd")
        if narrow.exists():
            with pq.ParquetFile(narrow) as written:
                for group in range(written.num_row_groups):
                    self._writer.write_table(
                        _conform(written.read_row_group(group), schema, self.path.stem), row_group_size=GROUP_ROWS
                    )
            narrow.unlink()


def _conform(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Return `table` with the columns and types of `schema`; missing columns become null."""
    columns = []
    found = dict(zip(table.column_names, table.columns, strict=True))  # a look-up in the table takes linear time
    for field in schema:
        if field.name not in found:
            columns.append(pa.nulls(len(table), field.type))
            continue
        try:
            columns.append(found[field.name].cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            what = f"column `{field.name}` is {field.type} in other rows, which cannot hold all values here: {error}"
            raise DataError(where, what, f"store `{field.name}` with one type in every row") from error
    return pa.Table.from_arrays(columns, schema=schema)

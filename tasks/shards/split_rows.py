"""The rows of a split, as ingest and validate write them: Parquet shards (trainer.data.shards).

A shard has the columns and types of its own rows. The split has those of all: a column that a shard lacks is null
there, integers are doubles if another shard has doubles, and text if another shard has text. `_common_metadata` holds that schema.

Values that no Arrow type holds as they were written are stored as JSON: nested ones with keys, which Arrow would unite over all rows,
columns of several types, and numbers of a CSV file, such as 12.50. Rows have the values themselves (`values_of_rows`); if the
split's type of such a column is text or a number, they have that. Of a text that says no number, they have null.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import hashlib
import json
import math
import re
import secrets
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types
from xxhash import xxh3_128_digest

from params import DataError
from params.foundation.artifacts import GROUP_BY, TIMES
from params.foundation.hashing import file_sha256
from trainer.data.shards import ROW, ROW_ID, Manifest, Shard

if TYPE_CHECKING:
    from trainer.objectives.bases.rows import ColumnKind

SCHEMA: Final = "_common_metadata"
"""Parquet's usual name for a file without rows that has the columns of a folder's files."""
JSON: Final = pa.json_()
"""Type of values that are stored as they were written."""
SEEN: Final = b"seen"
"""Metadata of a column that was found with several types: each with the address of its first value."""
AS_WRITTEN: Final = b"as written"
"""Metadata of a column of numbers with decimals whose values are stored as they were written."""
NUMBER: Final = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
"""A text that says a number."""
_BATCH_ROWS: Final = 8192
_ZEROS: Final = re.compile(r"^(-?\d+)(?:\.0+|(\.\d*[1-9])0+)$")
"""A number with zeros at its end: integers beside numbers with decimals have one, and a file of numbers is read without those it writes."""
_TOLD_BY_TEXT: Final = (bytes, dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID)
"""Types of values that JSON lacks; inside of nested values, their text stands for them."""
_SEED: Final = secrets.randbits(64)
_known = dict[str, bytes]()
"""Hashes of shards that this process has read, each with a fast hash of the same bytes: SHA-256 takes longer than to read a column."""


class SplitRows:
    """The rows of one split, or of one of its shards; they stay on disk until they are read.

    Raises:
        DataError: a file is missing or damaged; so does every method that reads rows.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        self.schema: pa.Schema = _read(folder / SCHEMA, pq.read_schema)
        """The columns of the rows, `row_id` first."""
        self.said: Mapping[str, pa.Field] = {}
        """The columns of texts that are read as the numbers that they say."""

    def reading(self, kinds: Mapping[str, ColumnKind]) -> Self:
        """Return the same rows as an objective with these columns reads them: where it reads text, integers are text.

        Numbers with decimals are text or labels only if they are stored as they were written: 12.50 must not become 12.5. Where it reads
        numbers, texts are the numbers that they say.
        """
        found = copy.copy(self)
        found.schema = schema_as_read(self.schema, kinds)
        found.said = {
            field.name: field
            for field, read in zip(self.schema, found.schema, strict=True)
            if types.is_string(field.type) and types.is_floating(read.type)
        }
        return found

    def with_said(self) -> Self:
        """Return the same rows with the texts that say numbers, as they are."""
        found = copy.copy(self)
        found.schema = pa.schema([self.said.get(field.name, field) for field in self.schema], self.schema.metadata)
        return found

    @property
    def group_by(self) -> dict[str, bool]:
        """The columns by which rows belong together, and whether they hold several types; empty if each row is on its own."""
        names = json.loads((self.schema.metadata or {}).get(GROUP_BY.encode(), "[]"))
        return {name: holds_several_types(self.schema.field(name)) for name in names}

    @property
    def times(self) -> dict[str, Any]:
        """The `column` with the time of each row, the `newest` of these, and by what the rows are `split`; empty if they have none."""
        return dict(json.loads((self.schema.metadata or {}).get(TIMES.encode(), "{}")))

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def shards(self) -> list[Self]:
        """The rows of each shard, with the columns of the split; a process gets no list of all shards with one."""
        found = [copy.copy(self) for _ in self.manifest.shards]
        for own, shard in zip(found, self.manifest.shards, strict=True):
            own.manifest = Manifest(self.folder, (shard,))
        return found

    @property
    def shard(self) -> Shard:
        """The shard, if these are the rows of one."""
        (found,) = self.manifest.shards
        return found

    def batches(self, columns: Sequence[str] | None = None, batch_rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, with the split's columns or some of them; a batch and the file of its shard are in memory."""
        schema = self._schema(columns)
        for shard in self.manifest.shards:
            with pq.ParquetFile(self._file(shard)) as file:
                stored = [ROW, *(name for name in schema.names if name in file.schema_arrow.names)]
                for batch in file.iter_batches(batch_rows, columns=stored):
                    table = pa.Table.from_batches([batch])
                    if ROW_ID in schema.names:
                        table = table.append_column(ROW_ID, pc.add(table[ROW].cast(pa.int64()), shard.first_row_id))
                    yield from conform_to_schema(table, schema, str(self.manifest.path(shard))).to_batches()

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        for batch in self.batches(columns, 1000):
            yield from values_of_rows(batch)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows, with the split's columns or some of them."""
        return pa.Table.from_batches(self.batches(columns), self._schema(columns))

    def _schema(self, columns: Sequence[str] | None) -> pa.Schema:
        return self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])

    def pick(self, row_ids: Collection[int], columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows with these ids in the split's order, with all columns or `row_id` and some; skip unknown ids.

        Only the shards that can hold one of the rows are read.
        """
        wanted = np.unique(np.fromiter(row_ids, np.int64))
        names = None if columns is None else list(dict.fromkeys([ROW_ID, *columns]))
        starts = np.searchsorted(wanted, [shard.first_row_id for shard in self.manifest.shards])
        for rows, own in zip(self.shards, np.split(wanted, starts)[1:], strict=True):
            for batch in rows.batches(names) if len(own) else ():
                yield from values_of_rows(batch.filter(pa.array(np.isin(batch[ROW_ID].to_numpy(), own))))

    def with_nulls(self, columns: Sequence[str]) -> set[str]:
        """Return those of the columns that have a null in the shard; no values are read. Columns with fields are not known."""
        metadata = _read(self.manifest.path(self.shard), pq.read_metadata)
        found = set(columns)
        for number in range(metadata.num_columns):
            groups = [metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)]
            # a column without any value has no statistics
            if not any(group.statistics is None or group.statistics.null_count for group in groups):
                found.discard(metadata.schema.column(number).path)
        return found

    def write_some(self, keep: NDArray[np.bool_], path: Path) -> dict[str, Any]:
        """Write those rows of the shard that `keep`, (N,), is true for to another file, and return its `rows` and `sha256`."""
        table = pq.read_table(self._file(self.shard)).filter(pa.array(keep))
        pq.write_table(table, path, compression="zstd", row_group_size=_BATCH_ROWS)
        return {"rows": len(table), "sha256": file_sha256(path)}

    def write_manifest(self, folder: Path, shards: list[Shard]) -> None:
        """Write the manifest and the columns of a folder that has shards of these rows."""
        if _read(self.folder / SCHEMA, pq.read_schema).equals(self.schema):
            shutil.copyfile(self.folder / SCHEMA, folder / SCHEMA)
        else:  # some columns are read as text
            pq.write_metadata(self.schema, folder / SCHEMA)
        Manifest.write(folder, shards)

    def _file(self, shard: Shard) -> pa.BufferReader:
        """Return a shard's file, in memory: what is read are the bytes whose hash the manifest has."""
        content = _read(self.manifest.path(shard), Path.read_bytes)
        fast = xxh3_128_digest(content, _SEED)
        if _known.get(shard.sha256) != fast and hashlib.sha256(content).hexdigest() != shard.sha256:
            what = "is not the file that its manifest describes: it has changed since it was written"
            raise DataError(str(self.manifest.path(shard)), what, "run the stage that writes it again")
        _known[shard.sha256] = fast
        return pa.BufferReader(content)


def schema_as_read(schema: pa.Schema, kinds: Mapping[str, ColumnKind]) -> pa.Schema:
    """Return the columns of a split as an objective with these columns reads them."""
    for place, field in enumerate(schema):
        kind = kinds.get(field.name)
        is_text = kind in ("string", "optional")
        if kind == "number" and types.is_string(field.type):
            schema = schema.set(place, field.with_type(pa.float64()))
        elif (is_text and types.is_integer(field.type)) or (
            (is_text or kind == "label") and AS_WRITTEN in (field.metadata or {})
        ):
            schema = schema.set(place, field.with_type(pa.string()))
    return schema


def table_of_values(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        texts = map(as_text, values) if types.is_string(field.type) else values
        columns.append(store_as_json(values) if field.type.equals(JSON) else pa.array(texts, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def type_name(kind: pa.DataType) -> str:
    """Return what people call a type."""
    return "json" if kind.equals(JSON) else str(kind)


def store_as_json(values: Iterable[Any]) -> pa.Array:
    """Return values as a column that holds them as they are; TypeError for one that JSON cannot tell."""
    return pa.array([None if value is None else _ENCODER.encode(value) for value in values], JSON)


def values_of_column(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; those that are stored as JSON are what they were."""
    values: list[Any] = column.to_pylist()
    if not column.type.equals(JSON):
        return values
    return [None if value is None else json.loads(value) for value in values]


def values_of_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.to_pylist()
    for name in (field.name for field in rows.schema if field.type.equals(JSON)):
        for row, value in zip(found, values_of_column(rows[name]), strict=True):
            row[name] = value
    return found


def as_text(value: Any) -> str | None:
    """Return the text of a value, as JSON writes it."""
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, _TOLD_BY_TEXT) else _ENCODER.encode(value)


def _told_by_text(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's
        return value.tolist()
    if isinstance(value, _TOLD_BY_TEXT):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_told_by_text)


def read_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the numbers that texts say, null for one that says none."""
    trimmed = pc.utf8_trim_whitespace(texts)
    is_number = pc.match_substring_regex(trimmed, f"^{NUMBER}$")
    return pc.if_else(is_number, trimmed, pa.scalar(None, trimmed.type)).cast(pa.float64())


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column with another type, none of whose values changes."""
    if column.type.equals(kind):
        return column
    if kind.equals(JSON):
        return pa.chunked_array([store_as_json(column.to_pylist())])
    if column.type.equals(JSON):
        return _cast_json(column.cast(pa.string()), kind)
    if types.is_string(column.type) and types.is_floating(kind):
        return read_numbers(column)
    is_told_alike = types.is_integer(column.type) or types.is_large_string(column.type)
    if _is_text(kind) and not is_told_alike:
        return pa.chunked_array([pa.array(map(as_text, column.to_pylist()), kind)])
    return column.cast(kind)


def _cast_json(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return JSON with another type; numbers stay as they are written: 2.50."""
    is_number = types.is_floating(kind)
    if not (is_number or _is_text(kind)) or not pc.any(pc.starts_with(column, '"')).as_py():
        return column.cast(kind)
    texts = [json.loads(text) if text and text[0] in '"n' else text for text in column.to_pylist()]
    unquoted = pa.chunked_array([pa.array(texts, pa.string())])
    return read_numbers(unquoted) if is_number else unquoted.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def holds_several_types(field: pa.Field) -> bool:
    """Whether a column was found with several types that have none in common but text, or JSON."""
    return SEEN in (field.metadata or {}) and (types.is_string(field.type) or field.type.equals(JSON))


def group_values_of_row(row: Mapping[str, Any], group_by: Mapping[str, bool]) -> dict[str, Any] | None:
    """Return the values that say which rows a row belongs with; None if all are missing, or none is asked for: it is on its own.

    In columns of several types, which `group_by` says, 7, "7" and "7.0" are one: which of them a row has, its file decides.
    """
    values = {name: row.get(name) for name in group_by}
    if all(map(_is_missing, values.values())):
        return None
    texts = {name: as_text(values[name]) for name, is_mixed in group_by.items() if is_mixed}
    return values | {name: text and _ZEROS.sub(r"\1\2", text) for name, text in texts.items()}


def group_key_of_row(row: Mapping[str, Any], group_by: Mapping[str, bool]) -> str | None:
    """Return a text that is the same for all rows that a row belongs with; None if it is on its own."""
    values = group_values_of_row(row, group_by)
    return None if values is None else json.dumps(list(values.values()), default=str, sort_keys=True)


def _is_missing(value: Any) -> bool:
    """Whether a value names no group: null, NaN, blank text (an empty cell of a CSV file), or a record of such values."""
    if isinstance(value, Mapping):
        return all(map(_is_missing, value.values()))
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def conform_to_schema(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Return `table` with the columns and types of `schema`; missing columns become null.

    Raises:
        DataError: a type cannot hold a value.
    """
    columns = []
    found = dict(zip(table.column_names, table.columns, strict=True))  # a look-up in the table takes linear time
    for field in schema:
        if field.name not in found:
            columns.append(pa.nulls(len(table), field.type))
            continue
        try:
            columns.append(_cast(found[field.name], field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            what = f"column `{field.name}` is {field.type} in other rows, which cannot hold all values here: {error}"
            raise DataError(where, what, f"store `{field.name}` with one type in every row") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _read(path: Path, read: Any) -> Any:
    try:
        return read(path)
    except FileNotFoundError:
        raise DataError(str(path), "does not exist", "run the stage that writes it again") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(str(path), f"cannot be read: {error}", "run the stage that writes it again") from None

"""Record batches of source rows: bounded in size, and every row has an address for error messages.

`to_readable_batch` is the boundary between a source and the stages: rows that pass it can be stored, and read by every stage.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from params import DataError
from tasks.ingestion.row_limit import (
    BATCH_BYTES,
    MAX_ROW_BYTES,
    check_number_of_columns,
    size_of_row,
    too_large_error,
)
from tasks.progress import reset_idle_timer
from tasks.shards.split_rows import JSON, store_as_json, values_of_rows
from trainer.data.shards import ROW, ROW_ID

logger = logging.getLogger(__name__)
BATCH_ROWS = 512
"""The most rows that are in memory as Python objects."""
MAX_NESTING = 32
"""The most lists and mappings inside each other. Parquet's readers allow about 50."""
_STORED_AS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.time64("ns"): pa.time64("us")}
_UNSUPPORTED = {pa.lib.Type_INTERVAL_MONTH_DAY_NANO, pa.lib.Type_RUN_END_ENCODED}
_ERRORS = (pa.ArrowException, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
"""What pyarrow and pandas raise for a value that they cannot convert."""


@dataclass(frozen=True)
class SourceBatch:
    """Consecutive rows of a source."""

    rows: pa.RecordBatch
    address: Callable[[int], str]
    """Return where the i-th of these rows is, for example `data/train.jsonl:17`."""
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Types of columns that are stored as JSON, but are text or numbers: values of several types, and numbers of a CSV file."""

    def divide(self, rows: int) -> tuple[SourceBatch, SourceBatch | None]:
        """Return the first `rows` rows, and the others; None if there are no others. Each has the types of its own values."""
        if len(self.rows) <= rows:
            return self, None
        first, rest = (
            pa.RecordBatch.from_arrays(
                [c if _has_own_form(c.type) else pa.array(c.to_pylist()) for c in part.columns], names=part.schema.names
            )
            for part in (self.rows.slice(0, rows), self.rows.slice(rows))
        )
        return replace(self, rows=first), replace(self, rows=rest, address=lambda i: self.address(rows + i))


AddressedRows = Generator[tuple[str, Mapping[str, Any]], None, None]
"""Pairs of an address and a row."""
Batches = Generator[SourceBatch, None, None]
"""Closing the generator closes the file or connection that it reads."""


def to_batches(rows: AddressedRows, written_numbers: Collection[str] = ()) -> Batches:
    """Group rows into batches; a key that is missing from a row becomes null. Texts in `written_numbers` are numbers as they are written.

    Raises:
        DataError: a row is too large, there are too many columns, a column holds bytes beside text, or values of a type that Parquet does not have.
    """
    with contextlib.closing(rows):
        while chunk := _next_rows(rows):
            addresses = [address for address, _ in chunk]
            names = dict[str, None]()
            for address, row in chunk:
                names.update(dict.fromkeys(row))
                check_number_of_columns(len(names), address)
            for name in names:
                if not is_utf8_encodable(name):
                    where = next(address for address, row in chunk if name in row)
                    what = f"the column {name!a} has half of a surrogate pair in its name, which is no character"
                    raise DataError(where, what, "rename the column")
            columns, types = list[pa.Array](), dict[str, pa.DataType]()
            for name in names:
                values = [row.get(name) for _, row in chunk]
                if name in written_numbers:
                    columns.append(pa.array(values, JSON))
                    types[name] = pa.float64()
                    continue
                column, kind = _column(name, values, addresses)
                columns.append(column)
                if not kind.equals(column.type):
                    types[name] = kind
            if not columns:
                raise DataError(addresses[0], "the row has no columns", "give every row at least one column")
            rows_of_chunk = pa.RecordBatch.from_arrays(columns, names=list(names))
            yield SourceBatch(rows_of_chunk, addresses.__getitem__, types)


def _next_rows(rows: AddressedRows) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the next rows, as many as are in memory together; DataError if one is too large."""
    found, size = list[tuple[str, Mapping[str, Any]]](), 0
    for address, row in islice(rows, BATCH_ROWS):
        reset_idle_timer()  # a source may take minutes for a row
        own = size_of_row(row)
        if own > MAX_ROW_BYTES:
            raise too_large_error(address)
        found.append((address, row))
        size += own
        if size >= BATCH_BYTES:
            break
    return found


def to_readable_batch(batch: SourceBatch) -> tuple[SourceBatch, list[dict[str, Any]]]:
    """Return a batch whose types every stage can read, and its rows as Python objects.

    Raises:
        DataError: a value cannot be converted; the error has the address of its row.
    """
    batch = rename_reserved_columns(batch)
    try:
        rows, values = _convert(batch.rows)
    except _ERRORS as error:
        raise _first_unreadable(batch, error) from error
    return replace(batch, rows=rows), values


def numbers_as_written(found: SourceBatch) -> list[dict[str, Any]]:
    """Return for each row of a readable batch those numbers with decimals that are stored as they were written, as text."""
    names = [name for name, kind in found.types.items() if pa.types.is_floating(kind)]
    texts = {name: found.rows[name].cast(pa.string()).to_pylist() for name in names}
    return [{name: values[i] for name, values in texts.items()} for i in range(len(found.rows))]


def rename_reserved_columns(batch: SourceBatch) -> SourceBatch:
    """Return a batch whose columns leave the names that shards use themselves: `row_id` becomes `source_row_id`."""
    names: list[str] = batch.rows.schema.names
    if not {ROW_ID, ROW}.intersection(names):
        return batch
    new = [f"source_{name.strip('_')}" if name in (ROW_ID, ROW) else name for name in names]
    for name, count in Counter(new).items():
        if count > 1:
            what = f"there are columns `{name}` and `{name.removeprefix('source_')}`; the pipeline uses the second name itself"
            raise DataError(batch.address(0), what, "rename one of them in the source")
    return rename_columns(batch, dict(zip(names, new, strict=True)))


def rename_columns(batch: SourceBatch, names: Mapping[str, str]) -> SourceBatch:
    kinds = {names.get(name, name): kind for name, kind in batch.types.items()}
    return replace(
        batch,
        rows=pa.RecordBatch.from_arrays(batch.rows.columns, names=[names.get(n, n) for n in batch.rows.schema.names]),
        types=kinds,
    )


def is_utf8_encodable(text: str) -> bool:
    """Whether `text` has no half of a surrogate pair, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_too_deep(value: object, depth: int = 1) -> bool:
    """Whether `value` has too many levels; pyarrow takes seconds for hundreds, and crashes at tens of thousands."""
    if not isinstance(value, dict | list | tuple):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth > MAX_NESTING or any(_is_too_deep(item, depth + 1) for item in items)


def _convert(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[dict[str, Any]]]:
    columns = []
    for column in rows.columns:
        kind = _plain(column.type)
        if _has_keys_or_json(kind) and not kind.equals(JSON):
            written = (_as_written(value, kind) for value in column.to_pylist(maps_as_pydicts="strict"))
            columns.append(store_as_json(written))
        else:
            columns.append(column if column.type.equals(kind) else column.cast(kind))
    rows = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
    rows.to_pandas(integer_object_nulls=True)  # the validate stage does this
    return rows, values_of_rows(rows)


def _as_written(value: Any, kind: pa.DataType) -> Any:
    """Return a nested value of this type without the nulls of structs, which have one for each field that a value lacks."""
    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json.loads(value)
    if pa.types.is_struct(kind):
        return {own.name: _as_written(value[own.name], own.type) for own in kind if value[own.name] is not None}
    if pa.types.is_map(kind):
        return {key: _as_written(inner, kind.item_type) for key, inner in value.items()}
    is_list = isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    return [_as_written(inner, kind.value_type) for inner in value] if is_list else value


def _has_own_form(kind: pa.DataType) -> bool:
    """Whether values of a type do not say their type, or not all of it: JSON, keys, and times to the nanosecond."""
    if _has_keys_or_json(kind) or pa.types.is_map(kind) or pa.types.is_timestamp(kind):
        return True
    return any(_has_own_form(kind.field(i).type) for i in range(kind.num_fields))


def _has_keys_or_json(kind: pa.DataType) -> bool:
    """Whether values of a type have keys, or are JSON. A map by itself stays one."""
    if pa.types.is_struct(kind) or isinstance(kind, pa.JsonType):
        return True
    if pa.types.is_map(kind):
        return _has_keys_or_json(kind.key_type) or _has_keys_or_json(kind.item_type)
    return any(_has_keys_or_json(kind.field(i).type) for i in range(kind.num_fields))


def _plain(kind: pa.DataType, depth: int = 1) -> pa.DataType:
    """Return the type in which values are stored, with another one for types that pandas or Arrow's functions lack."""
    if depth > MAX_NESTING + 1:  # a value of depth 0 has a type, too
        raise ValueError(f"it is nested more than {MAX_NESTING} levels deep")
    if kind.id in _UNSUPPORTED:
        raise TypeError("Parquet has no such type")
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type, depth)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type, depth + 1)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type, depth + 1), _plain(kind.item_type, depth + 1))
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        value = kind.value_field.with_type(_plain(kind.value_type, depth + 1))
        size = kind.list_size if isinstance(kind, pa.FixedSizeListType) else -1
        return pa.large_list(value) if isinstance(kind, pa.LargeListType) else pa.list_(value, size)
    return _STORED_AS.get(kind, kind)


def _first_unreadable(batch: SourceBatch, error: Exception) -> DataError:
    """Return an error for the first value of the first column that cannot be converted."""
    for name in batch.rows.schema.names:
        column = batch.rows.select([name])
        if _conversion_error(column) is None:
            continue
        for row in range(len(column)):
            if (reason := _conversion_error(column.slice(row, 1))) is not None:
                what = f"column `{name}`: a value of type {column.schema.field(0).type} cannot be read: {reason}"
                return DataError(batch.address(row), what, "convert it to text or a number, or remove the column")
    what = f"these rows cannot be read: {error}"
    return DataError(f"{batch.address(0)} to {batch.address(len(batch.rows) - 1)}", what, "convert them to text")


def _conversion_error(rows: pa.RecordBatch) -> str | None:
    try:
        _convert(rows)
    except _ERRORS as error:
        return f"{type(error).__name__}: {error}"
    return None


def _column(name: str, values: Sequence[Any], addresses: Sequence[str]) -> tuple[pa.Array, pa.DataType]:
    for value, address in zip(values, addresses, strict=True):
        if _is_too_deep(value):
            what = f"column `{name}` is nested more than {MAX_NESTING} levels deep"
            raise DataError(address, what, "store it as text, for example as JSON")
    try:
        return _infer_column(values)
    except UnicodeEncodeError:
        whole = [None if _has_half_pair(value) else value for value in values]
        places = [place for place, kept in enumerate(whole) if kept is None and values[place] is not None]
        message = (
            "%s: `%s` has half of a surrogate pair, which is no character: it is left empty, in %d rows from there on"
        )
        logger.warning(message, addresses[places[0]], name, len(places))
        return _column(name, whole, addresses)
    except _ERRORS as error:
        where, fix = f"{addresses[0]} to {addresses[-1]}", f"store `{name}` with one type in every row"
        raise _first_error(name, values, addresses) or DataError(where, f"column `{name}`: {error}", fix) from error


def _has_half_pair(value: object) -> bool:
    """Whether a text, or one inside of a value, has half of a surrogate pair."""
    if isinstance(value, dict):
        return any(_has_half_pair(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple):
        return any(map(_has_half_pair, value))
    return isinstance(value, str) and not is_utf8_encodable(value)


def _infer_column(values: Sequence[Any]) -> tuple[pa.Array, pa.DataType]:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {dict} and not any(values):  # {} in every row says nothing, and keeps no row in another split than null
        return pa.nulls(len(values)), pa.null()
    if any(map(_has_keys, values)):
        return store_as_json(values), JSON
    if bytes in kinds and len(kinds) > 1:
        raise TypeError("bytes beside other values have no type in common")
    column = None
    with contextlib.suppress(*_ERRORS):
        column = pa.array(values)
    # pyarrow would turn a time beside dates into a date, and true beside numbers with decimals into 1
    if column is None or kinds >= {dt.date, dt.datetime} or kinds >= {bool, float}:
        is_nested = any(isinstance(value, list | tuple) for value in values)
        return store_as_json(values), JSON if is_nested else pa.string()
    return column, column.type


def _has_keys(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and any(map(_has_keys, value)))


def _first_error(name: str, values: Sequence[Any], addresses: Sequence[str]) -> DataError | None:
    """Return an error for the first value that cannot be stored, or not beside those before it."""
    for count, address in enumerate(addresses, start=1):
        for tried in (values[count - 1 : count], values[:count]):
            try:
                _infer_column(tried)
            except _ERRORS as error:
                what = f"column `{name}`: a value of type {type(tried[-1]).__name__} cannot be stored: {error}"
                return DataError(address, what, "convert it to text or a number")
    return None

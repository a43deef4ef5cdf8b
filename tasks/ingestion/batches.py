"""Record batches of source rows: bounded in size, and every row has an address for error messages.

`to_readable_batch` is the boundary between a source and the stages: rows that pass it can be stored, and read by every stage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from params import DataError
from tasks.progress import reset_idle_timer

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

    def divide(self, rows: int) -> tuple[SourceBatch, SourceBatch | None]:
        """Return the first `rows` rows, and the others; None if there are no others. Each has the types of its own values."""
        if len(self.rows) <= rows:
            return self, None
        first, rest = (
            pa.RecordBatch.from_arrays(
                [pa.array(column.to_pylist()) for column in part.columns], names=part.schema.names
            )
            for part in (self.rows.slice(0, rows), self.rows.slice(rows))
        )
        return SourceBatch(first, self.address), SourceBatch(rest, lambda i: self.address(rows + i))


AddressedRows = Generator[tuple[str, Mapping[str, Any]], None, None]
"""Pairs of an address and a row."""
Batches = Generator[SourceBatch, None, None]
"""Closing the generator closes the file or connection that it reads."""


def to_batches(rows: AddressedRows) -> Batches:
    """Group rows into batches; a key that is missing from a row becomes null.

    Raises:
        DataError: a column holds values of several types, or of a type that Parquet does not have.
    """
    with contextlib.closing(rows):
        while chunk := [_count(row) for row in islice(rows, BATCH_ROWS)]:
            addresses = [address for address, _ in chunk]
            names = dict.fromkeys(name for _, row in chunk for name in row)
            for name in names:
                if not is_utf8_encodable(name):
                    where = next(address for address, row in chunk if name in row)
                    what = f"the column {name!a} has half of a surrogate pair in its name, which is no character"
                    raise DataError(where, what, "rename the column")
            columns = [_column(name, [row.get(name) for _, row in chunk], addresses) for name in names]
            if not columns:
                raise DataError(addresses[0], "the row has no columns", "give every row at least one column")
            rows_of_chunk = pa.RecordBatch.from_arrays(columns, names=list(names))
            yield SourceBatch(rows_of_chunk, addresses.__getitem__)


def _count(row: tuple[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    reset_idle_timer()  # a source may take minutes for a row
    return row


def to_readable_batch(batch: SourceBatch) -> tuple[SourceBatch, list[dict[str, Any]]]:
    """Return a batch whose types every stage can read, and its rows as Python objects.

    Raises:
        DataError: a value cannot be converted; the error has the address of its row.
    """
    try:
        rows, values = _convert(batch.rows)
    except _ERRORS as error:
        raise _first_unreadable(batch, error) from error
    return SourceBatch(rows, batch.address), values


def common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both types unchanged, such as double for int64 and double; else None."""
    if first.equals(second) or pa.types.is_null(second):
        return first
    if _is_text(first) != _is_text(second) and not pa.types.is_null(first):
        return None
    fields = [pa.schema([("", kind)]) for kind in (first, second)]
    try:
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def differing_type_error(where: str, name: str, found: pa.DataType, before: pa.DataType) -> DataError:
    """Return the error for a column whose type differs from that of earlier rows."""
    what = f"column `{name}` is {found} here, and {before} in the rows before"
    return DataError(where, what, f"store `{name}` with one type in every row, for example as text")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
    schema = pa.schema([field.with_type(_plain(field.type)) for field in rows.schema])
    if not schema.equals(rows.schema):
        rows = rows.cast(schema)
    rows.to_pandas(integer_object_nulls=True)  # the validate stage does this
    return rows, rows.to_pylist()


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


def _column(name: str, values: Sequence[Any], addresses: Sequence[str]) -> pa.Array:
    for value, address in zip(values, addresses, strict=True):
        if _is_too_deep(value):
            what = f"column `{name}` is nested more than {MAX_NESTING} levels deep"
            raise DataError(address, what, "store it as text, for example as JSON")
    try:
        column = pa.array(values)
    except _ERRORS as error:
        where, fix = f"{addresses[0]} to {addresses[-1]}", f"store `{name}` with one type in every row"
        raise _first_type_error(name, values, addresses) or DataError(
            where, f"column `{name}`: {error}", fix
        ) from error
    # pyarrow would turn text beside bytes into bytes.
    mixed = pa.types.is_binary(column.type) and any(isinstance(value, str) for value in values)
    if mixed and (error_of_row := _first_type_error(name, values, addresses)):
        raise error_of_row
    if _has_empty_struct(column.type):  # {} in every row, which Parquet cannot hold
        return pa.array([_null_for_empty(value) for value in values])
    return column


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Whether a type or one inside it is a struct without fields."""
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not inner) or any(map(_has_empty_struct, inner))


def _null_for_empty(value: Any) -> Any:
    """Return the value with None for each {} in it."""
    if isinstance(value, Mapping):
        return {key: _null_for_empty(inner) for key, inner in value.items()} or None
    return [_null_for_empty(inner) for inner in value] if isinstance(value, list) else value


def _first_type_error(name: str, values: Sequence[Any], addresses: Sequence[str]) -> DataError | None:
    """Return an error for the first value that has no Arrow type, or none in common with the values before it."""
    before = pa.null()
    for value, address in zip(values, addresses, strict=True):
        try:
            found = pa.array([value]).type
        except _ERRORS as error:
            what = f"column `{name}`: a value of type {type(value).__name__} cannot be stored: {error}"
            return DataError(address, what, "convert it to text or a number")
        shared = common_type(before, found)
        if shared is None:
            return differing_type_error(address, name, found, before)
        before = shared
    return None

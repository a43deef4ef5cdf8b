"""Record batches of source rows: bounded in size, and every row has an address for error messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from params import DataError

BATCH_ROWS = 512
"""The most rows that are in memory as Python objects."""


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a source."""

    rows: pa.RecordBatch
    address: Callable[[int], str]
    """Return where the i-th of these rows is, for example `data/train.jsonl:17`."""


AddressedRows = Generator[tuple[str, Mapping[str, Any]], None, None]
"""Pairs of an address and a row."""
Batches = Generator[Batch, None, None]
"""Closing the generator closes the file or connection that it reads."""


def to_batches(rows: AddressedRows) -> Batches:
    """Group rows into batches; a key that is missing from a row becomes null.

    Raises:
        DataError: a column holds values of several types, or of a type that Parquet does not have.
    """
    with contextlib.closing(rows):
        while chunk := list(islice(rows, BATCH_ROWS)):
            addresses = [address for address, _ in chunk]
            names = dict.fromkeys(name for _, row in chunk for name in row)
            columns = [_column(name, [row.get(name) for _, row in chunk], addresses) for name in names]
            if not columns:
                raise DataError(addresses[0], "the row has no columns", "give every row at least one column")
            yield Batch(pa.RecordBatch.from_arrays(columns, names=list(names)), addresses.__getitem__)


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


def type_error(where: str, name: str, found: pa.DataType, before: pa.DataType) -> DataError:
    """Return the error for a column whose type differs from that of earlier rows."""
    what = f"column `{name}` is {found} here, and {before} in the rows before"
    return DataError(where, what, f"store `{name}` with one type in every row, for example as text")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _column(name: str, values: Sequence[Any], addresses: Sequence[str]) -> pa.Array:
    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError) as error:
        where, fix = f"{addresses[0]} to {addresses[-1]}", f"store `{name}` with one type in every row"
        raise _first_type_error(name, values, addresses) or DataError(
            where, f"column `{name}`: {error}", fix
        ) from error
    # pyarrow would turn text beside bytes into bytes.
    mixed = pa.types.is_binary(column.type) and any(isinstance(value, str) for value in values)
    if mixed and (error_of_row := _first_type_error(name, values, addresses)):
        raise error_of_row
    if column.type.equals(pa.struct([])):  # every value is {}, which Parquet cannot hold
        return pa.nulls(len(column))
    return column


def _first_type_error(name: str, values: Sequence[Any], addresses: Sequence[str]) -> DataError | None:
    """Return an error for the first value that has no Arrow type, or none in common with the values before it."""
    before = pa.null()
    for value, address in zip(values, addresses, strict=True):
        try:
            found = pa.array([value]).type
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError) as error:
            what = f"column `{name}`: a value of type {type(value).__name__} cannot be stored: {error}"
            return DataError(address, what, "convert it to text or a number")
        shared = common_type(before, found)
        if shared is None:
            return type_error(address, name, found, before)
        before = shared
    return None

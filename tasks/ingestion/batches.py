"""Rows on their way from a source to the raw data: record batches of bounded size, each row with an address."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from params import DataError

BATCH_ROWS = 512
"""Rows that are in memory at once, as Python objects."""


@dataclass(frozen=True)
class Batch:
    """Some rows, in the order of the source."""

    rows: pa.RecordBatch
    address: Callable[[int], str]
    """Where the i-th of these rows came from, for example `data/train.jsonl:17`."""


Rows = Generator[tuple[str, Mapping[str, Any]], None, None]
"""Pairs of an address and a row."""
Batches = Generator[Batch, None, None]
"""Closing it lets go of the file or connection that the rows come from."""


def tabulate(rows: Rows) -> Batches:
    """Batches of `rows`, which are pairs of an address and a row; a key that a row lacks is null there.

    Raises:
        DataError: a column holds values of several types, or of one that Parquet does not have.
    """
    with contextlib.closing(rows):
        while chunk := list(islice(rows, BATCH_ROWS)):
            addresses = [address for address, _ in chunk]
            names = dict.fromkeys(name for _, row in chunk for name in row)
            columns = [_column(name, [row.get(name) for _, row in chunk], addresses) for name in names]
            if not columns:
                raise DataError(addresses[0], "the row has no columns", "give every row at least one key")
            yield Batch(pa.RecordBatch.from_arrays(columns, names=list(names)), addresses.__getitem__)


def widest(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The type that holds all values of both without changing one, such as double for int64 and double; else None."""
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
    """What to raise for a row whose column is not of the type that the rows before it have."""
    what = f"column `{name}` is {found} here, and {before} in the rows before"
    return DataError(where, what, f"give every row the same type in `{name}`, for example all as text")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _column(name: str, values: Sequence[Any], addresses: Sequence[str]) -> pa.Array:
    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError) as error:
        raise _first_misfit(name, values, addresses) or DataError(
            f"{addresses[0]} to {addresses[-1]}", f"column `{name}`: {error}", "give all of its rows one type"
        ) from error
    mixed = pa.types.is_binary(column.type) and any(isinstance(value, str) for value in values)  # all would be bytes
    if mixed and (error_of_row := _first_misfit(name, values, addresses)):
        raise error_of_row
    if column.type.equals(pa.struct([])):  # only {}, which Parquet cannot hold
        return pa.nulls(len(column))
    return column


def _first_misfit(name: str, values: Sequence[Any], addresses: Sequence[str]) -> DataError | None:
    """The first of `values` that cannot be stored at all, or not together with those before it."""
    before = pa.null()
    for value, address in zip(values, addresses, strict=True):
        try:
            found = pa.array([value]).type
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError) as error:
            kind = type(value).__name__
            return DataError(
                address, f"column `{name}`: a {kind} that cannot be stored: {error}", "store it as text or a number"
            )
        together = widest(before, found)
        if together is None:
            return type_error(address, name, found, before)
        before = together
    return None

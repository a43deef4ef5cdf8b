"""The largest row: few bytes of a file of a stranger can stand for very many, compressed or in Parquet.

A larger row is a bad row: an error that says where it is. So the memory for a row, a batch and a part of the source has a bound, whatever the file is.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from params import DataError

MAX_ROW_BYTES: Final = 64 << 20
MAX_COLUMNS: Final = 4096
"""Of all rows of a source together: each column takes a place in each row, and few bytes can name very many."""
BATCH_BYTES: Final = 64 << 20
"""Rows are handed on, whatever their number, once they have as many bytes together."""
MAX_PART_BYTES: Final = 4 << 30
"""Of a part of the source, whose number of rows follows from its first rows."""
_DECODE_BYTES: Final = 4 << 30
"""Memory for reading a batch of Parquet, whose header may say anything, or a workbook."""
_REFERENCE_BYTES: Final = 8
_MAX_DEPTH: Final = 50


def too_large_error(where: str) -> DataError:
    what = f"the row has more than {MAX_ROW_BYTES >> 20} MiB, the most that a row may have"
    return DataError(
        where, what, "divide it into several rows, or remove it; a small file can stand for a very large row"
    )


def check_number_of_columns(count: int, where: str) -> None:
    """Raise DataError if a source has too many columns."""
    if count > MAX_COLUMNS:
        what = f"there are more than {MAX_COLUMNS} columns up to here, the most that a source may have"
        fix = "leave out columns, or put what belongs together into one column: a list, or an object of JSON"
        raise DataError(where, what, fix)


def read_bounded_line(file: IO[bytes], where: str) -> bytes:
    """Return the next line; DataError if it is longer than a row may be."""
    line = file.readline(MAX_ROW_BYTES + 1)
    if len(line) > MAX_ROW_BYTES:
        raise too_large_error(where)
    return line


def bounded_lines(file: IO[bytes], name: str, first: int = 1) -> Iterator[bytes]:
    """Yield the lines of a file, of which the next one has the number `first`."""
    number = first
    while line := read_bounded_line(file, f"{name}:{number}"):
        yield line
        number += 1


def size_of_row(row: Mapping[str, Any]) -> int:
    """Return about how many bytes the values of a row have."""
    return sum(map(_size, row.values()))


def _size(value: Any, depth: int = 0) -> int:
    if depth > _MAX_DEPTH:  # it is refused for that
        return _REFERENCE_BYTES
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return _REFERENCE_BYTES + sum(_size(inner, depth + 1) for inner in value.values())
    if isinstance(value, list | tuple):
        return _REFERENCE_BYTES + sum(_size(inner, depth + 1) for inner in value)
    return int(getattr(value, "nbytes", _REFERENCE_BYTES))


def bounded_slices(batch: pa.RecordBatch, name: str, first: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch of Parquet in slices of at most `BATCH_BYTES`, or one row; `first` is the number of its first row.

    Raises:
        DataError: a row is too large.
    """
    if size_of_batch(batch) <= BATCH_BYTES:
        yield batch
        return
    if len(batch) == 1:
        if size_of_batch(batch) > MAX_ROW_BYTES:
            raise too_large_error(f"{name} row {first}")
        yield batch
        return
    half = len(batch) // 2
    yield from bounded_slices(batch.slice(0, half), name, first)
    yield from bounded_slices(batch.slice(half), name, first + half)


def size_of_batch(batch: pa.RecordBatch) -> int:
    """Return the bytes of the values of a batch as they are once nothing is shared, with a reference for each item of a list."""
    return sum(map(_size_of_array, batch.columns))


def _size_of_array(array: pa.Array) -> int:
    kind = array.type
    if types.is_dictionary(kind):
        if not _is_text(kind.value_type):
            return len(array) * _REFERENCE_BYTES
        lengths = pc.cast(pc.binary_length(array.dictionary), pa.int64())
        return pc.sum(lengths.take(array.indices)).as_py() or 0
    if types.is_map(kind):
        return int(array.nbytes)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        items = array.flatten()
        return len(items) * _REFERENCE_BYTES + _size_of_array(items)
    if types.is_struct(kind):
        return sum(_size_of_array(array.field(i)) for i in range(kind.num_fields))
    return int(array.nbytes)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


@contextlib.contextmanager
def bounded_memory(
    name: str, of: str = "its next rows need", fix: str = "write it again with smaller row groups"
) -> Iterator[None]:
    """Let the block take so much more memory than this process has; DataError if that is not enough to read `name`, with what to do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _data_bytes() + _DECODE_BYTES
    is_lower = soft == resource.RLIM_INFINITY or most < soft
    try:
        if is_lower:
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        yield
    except MemoryError as error:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))  # the error itself needs memory
        what = f"{of} more than {_DECODE_BYTES >> 30} GiB of memory to be read"
        raise DataError(name, what, f"{fix}; a small file can stand for very large rows") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Return the bytes of memory that RLIMIT_DATA counts."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0

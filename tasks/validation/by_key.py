"""Find rows with equal keys, in memory that does not grow with the number of rows.

Each shard gives a file with a hash of 128 bits for the key of each row, in order of the hash. The hashes are divided into
buckets by their first bits; a bucket is read from all files, and has all rows of each key in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from params.schema import Expectation
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import group_of
from tasks.validation.checks import (
    GROUP_IS_IN_ONE_SPLIT,
    columns_read,
    condition_columns,
    whole_frame,
    without_condition,
)
from tasks.validation.expectations import as_text, columns_of, compared_rows
from tasks.validation.raw_rows import NOTHING, PartWork, Positions, RawRows, without

if TYPE_CHECKING:
    import pyarrow as pa

BUCKET_ROWS: Final = 1 << 19
"""Rows of a bucket, about; while it is read, one takes around 100 bytes."""
_NULL: Final = b"\xfe"
_SEPARATOR: Final = b"\xff"
"""Bytes that UTF-8 never has."""
_POSITION_BITS: Final = np.uint64(48)
_POSITION: Final = np.uint64((1 << 48) - 1)


@dataclass(frozen=True)
class Keys:
    """The hashed keys of some rows, on disk."""

    files: tuple[Path, ...]
    """For each shard an array (3, N) of uint64: first and second half of the hash; place in the shard, with its form in the
    upper 16 bits."""
    starts: tuple[int, ...]
    """Position of the first row of each shard."""
    rows: int
    workers: ShardWorkers
    """Look for equal keys."""


@dataclass(frozen=True)
class Duplicates:
    """The rows that repeat an earlier row."""

    members: int
    """Number of all rows that have the key of another row; the first of them too."""
    failing: Positions
    """Positions of the rows that repeat an earlier one."""
    repeats: NDArray[np.int64]
    """For each of them the position of the row that stays."""


def hash_keys(expectation: Expectation, rows: RawRows, folder: Path, skip: Positions) -> Keys:
    """Hash the key of each row that the expectation does not ignore, but not of the rows at the positions in `skip`."""
    if condition_columns(expectation) is None:
        everything = whole_frame(rows, columns_read(expectation, rows.schema))
        compared = compared_rows(expectation, without(everything, skip))
        skip = np.setdiff1d(np.arange(len(rows)), compared)
        expectation = without_condition(expectation)
    files = [folder / f"{number:05}.npy" for number in range(len(rows.parts))]
    counts = rows.run(
        partial(hash_part, expectation),
        rows.parts,
        what="equal rows",
        columns=columns_read(expectation, rows.schema),
        skip=skip,
        paths=files,
        expectation=as_text(expectation),
    )
    return Keys(tuple(files), tuple(part.start for part in rows.parts), sum(counts), rows.workers)


def hash_part(expectation: Expectation, work: PartWork) -> int:
    """Write the hashed keys of one shard, and return how many there are."""
    columns, part = columns_of([expectation]), work.part
    read = columns_read(expectation, part.rows.schema)
    table = part.table(read)
    if expectation.type == GROUP_IS_IN_ONE_SPLIT:
        is_grouped = [group_of(row, columns) is not None for row in table.select(columns).to_pylist()]
        compared = np.setdiff1d(np.flatnonzero(is_grouped), work.skip)
    else:
        frame = part.frame(read, frozenset(), work.skip, table=table)
        compared = compared_rows(expectation, frame)
    table = table.select(columns).take(compared)
    digests = b"".join(blake2b(key, digest_size=16).digest() for key in encode_keys(table))
    halves = np.frombuffer(digests, "<u8").reshape(-1, 2).T
    places = compared.astype(np.uint64) | (key_forms(table) << _POSITION_BITS)
    order = np.lexsort((halves[1], halves[0]))
    np.save(work.files[0], np.concatenate([halves, places[None]])[:, order])
    return len(compared)


def encode_keys(table: pa.Table) -> list[bytes]:
    """Return bytes for each row, which are equal if pandas' `duplicated` takes the rows as equal."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    columns = []
    for column in table.columns:
        kind = column.type
        if types.is_floating(kind):
            number = pc.add(column.cast(pa.float64()), 0.0)  # -0.0 becomes 0.0
            text = pc.if_else(pc.is_nan(number), pa.scalar(None, pa.float64()), number).cast(pa.string())
        elif types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind):
            text = column.cast(pa.string())
        elif types.is_string(kind) or types.is_large_string(kind):
            text = column
        else:
            values = [None if value is None else repr(value) for value in column.to_pylist()]
            text = pa.chunked_array([pa.array(values, pa.string())])
        columns.append(pc.fill_null(text.cast(pa.large_binary()), pa.scalar(_NULL, pa.large_binary())))
    joined = (
        columns[0]
        if len(columns) == 1
        else pc.binary_join_element_wise(*columns, pa.scalar(_SEPARATOR, pa.large_binary()))
    )
    found: list[bytes] = joined.to_pylist()
    return found


def key_forms(table: pa.Table) -> NDArray[np.uint64]:
    """Return a number for each row, below 2**16, that tells -0.0 from 0.0 and NaN from null in equal keys."""
    import pyarrow.compute as pc
    from pyarrow import types

    forms = np.zeros(len(table), np.uint64)
    for column in table.columns:
        if types.is_floating(column.type):
            numbers = pc.fill_null(column, 0.0).to_numpy().astype(np.float64)
            own = np.isnan(numbers) * 2 + (np.signbit(numbers) & (numbers == 0))
            forms = (forms * np.uint64(3) + own.astype(np.uint64)) % np.uint64(65521)
    return forms


def find_duplicates(keys: Keys, set_aside: Positions) -> Duplicates:
    """Return the rows that repeat another; rows at the positions in `set_aside` come last among those with their key."""
    return _in_buckets(keys, partial(_repeats, set_aside))


def find_in_two_splits(keys: Keys, ends: Sequence[int]) -> Duplicates:
    """Return the rows whose key occurs in an earlier split, too; `ends` are the positions after the last row of each split."""
    return _in_buckets(keys, partial(_in_later_split, np.asarray(ends)))


_Find = Callable[[NDArray[np.int64], NDArray[np.uint64]], Duplicates]
"""Finds rows among those with equal keys, from the numbers of their keys and from their places."""


def _in_buckets(keys: Keys, find: _Find) -> Duplicates:
    """Return what `find` finds among all rows with equal keys."""
    buckets = 1 << max(0, (keys.rows // BUCKET_ROWS).bit_length())
    width = (1 << 64) // buckets
    ranges = [(n * width, (n + 1) * width - 1) for n in range(buckets)]
    work = partial(_in_bucket, find, keys.files, keys.starts)
    found = list(keys.workers.map(work, ranges, what="buckets (equal rows)"))
    failing = np.concatenate([NOTHING, *(one.failing for one in found)])
    order = np.argsort(failing)
    repeats = np.concatenate([NOTHING, *(one.repeats for one in found)])
    return Duplicates(sum(one.members for one in found), failing[order], repeats[order])


def _in_bucket(find: _Find, files: Sequence[Path], starts: Sequence[int], bucket: tuple[int, int]) -> Duplicates:
    return find(*_equal_keys(files, starts, *bucket))


def _equal_keys(
    files: Sequence[Path], starts: Sequence[int], first: int, last: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return a number for the key, and the place with the form, of each row that has the key of another.

    Only rows whose hash begins with a number from `first` to `last` are read.
    """
    read: list[Any] = [np.zeros((3, 0), np.uint64)]
    for path, position in zip(files, starts, strict=True):
        stored = np.load(path, mmap_mode="r")
        start = np.searchsorted(stored[0], np.uint64(first))
        stop = np.searchsorted(stored[0], np.uint64(last), side="right")
        read.append(np.array(stored[:, start:stop]))
        read[-1][2] += np.uint64(position)
    one, two, places = _with_equal_halves(np.concatenate(read, axis=1))
    order = np.lexsort((two, one))
    one, two, places = one[order], two[order], places[order]
    is_new = np.ones(len(one), np.bool_)  # another key than that of the row before
    is_new[1:] = (one[1:] != one[:-1]) | (two[1:] != two[:-1])
    key: NDArray[np.int64] = np.cumsum(is_new, dtype=np.int64)
    repeated = np.bincount(key)[key] > 1
    return key[repeated], places[repeated]


def _repeats(set_aside: Positions, key: NDArray[np.int64], places: NDArray[np.uint64]) -> Duplicates:
    form, position = places >> _POSITION_BITS, (places & _POSITION).astype(np.int64)
    order = np.lexsort((position, np.isin(position, set_aside), form, key))
    key, form, position = key[order], form[order], position[order]
    is_first = np.ones(len(key), np.bool_)
    is_first[1:] = (key[1:] != key[:-1]) | (form[1:] != form[:-1])
    stays = position[is_first][np.cumsum(is_first) - 1]
    return Duplicates(len(position), position[~is_first], stays[~is_first])


def _in_later_split(ends: NDArray[np.int64], key: NDArray[np.int64], places: NDArray[np.uint64]) -> Duplicates:
    position = (places & _POSITION).astype(np.int64)
    order = np.lexsort((position, key))
    key, position = key[order], position[order]
    first = position[np.searchsorted(key, key)]
    is_later = np.searchsorted(ends, position, side="right") > np.searchsorted(ends, first, side="right")
    return Duplicates(len(position), position[is_later], first[is_later])


def _with_equal_halves(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return those of the keys, (3, N), whose first half is that of another, too: few, so they are quickly put in order."""
    ordered = np.sort(keys[0])
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return keys[:, :0]
    nearest = repeated[np.minimum(np.searchsorted(repeated, keys[0]), len(repeated) - 1)]
    return keys[:, nearest == keys[0]]

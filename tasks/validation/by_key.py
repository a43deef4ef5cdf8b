"""Find rows with equal keys, in memory that does not grow with the number of rows.

Each shard gives a file with a hash of 128 bits for the key of each row, in order of the hash. The hashes are divided into
buckets by their first bits; a bucket is read from all files, and has all rows of each key in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from params.foundation.artifacts import write_array
from params.sections.rows import Expectation
from tasks.shards.split_rows import JSON, group_values_of_row, holds_several_types, values_of_column, values_of_rows
from tasks.validation import checks, expectations
from tasks.validation.raw_rows import NOTHING, ORDER, Positions, RawRows, RawShardWork, drop_rows, table_to_frame
from trainer import objectives
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import to_json

BUCKET_ROWS: Final = 1 << 19
"""Rows of a bucket, about; while it is read, one takes around 100 bytes."""
_NULL: Final = b"\xfe"
_SEPARATOR: Final = b"\xff"
"""Bytes that UTF-8 never has."""


def find_duplicate_rows(
    expectation: Expectation, rows: RawRows, skip: Positions, set_aside: Positions
) -> expectations.ExpectationResult:
    """Return the rows that repeat another, among those that the expectation does not ignore and that are not in `skip`.

    Rows at the positions in `set_aside` come last among those with their key. The data pass as Great Expectations has it, for which all
    equal rows fail.
    """
    return _find(expectation, rows, skip, set_aside, None)


def find_groups_across_splits(rows: RawRows, skip: Positions) -> tuple[Expectation, expectations.ExpectationResult]:
    """Return the check of `data.group_by`, and the rows whose group is in an earlier split, too."""
    listed: Any = {"column_list": [*rows.splits["train"].group_by]}
    expectation = Expectation(type=checks.GROUP_IS_IN_ONE_SPLIT, **listed)
    ends = np.array([rows.span(split).stop for split in ORDER])
    return expectation, _find(expectation, rows, skip, NOTHING, ends)


def find_rows_across_splits(
    rows: RawRows, skip: Positions, objective: Objective[Any], identity: Any
) -> tuple[Expectation, expectations.ExpectationResult]:
    """Return the check of rows with equal content, and those that repeat a row of an earlier split.

    `identity` is all that the objective's contents depend on beside its code, as JSON.
    """
    columns = [*objective.columns()]
    listed: Any = {"column_list": columns}
    expectation = Expectation(type=checks.ROW_IS_IN_ONE_SPLIT, **listed)
    work = partial(write_shard_content_hashes, objective)
    ends = np.array([rows.span(split).stop for split in ORDER])
    settings = {"what": "equal content", "columns": columns, "objective": identity}
    return expectation, _compare_hashes(
        work, expectation, rows, skip=skip, set_aside=NOTHING, ends=ends, settings=settings
    )


def _find(
    expectation: Expectation, rows: RawRows, skip: Positions, set_aside: Positions, ends: Positions | None
) -> expectations.ExpectationResult:
    """Hash the key of each row, and compare them; with the `ends` of the splits, only rows of an earlier split are repeated."""
    if checks.row_condition_columns(expectation) is None:
        everything = checks.read_columns_as_frame(rows, checks.columns_read_by_expectation(expectation, rows.schema))
        compared = expectations.positions_of_compared_rows(expectation, drop_rows(everything, skip))
        skip = np.setdiff1d(np.arange(len(rows)), compared)
        expectation = checks.without_row_condition(expectation)
    columns = checks.columns_read_by_expectation(expectation, rows.schema)
    text = expectations.expectation_key_text(expectation)
    settings = {"what": "equal rows", "columns": columns, "expectation": text}
    work = partial(write_shard_key_hashes, expectation)
    return _compare_hashes(work, expectation, rows, skip=skip, set_aside=set_aside, ends=ends, settings=settings)


def _compare_hashes(
    write: Callable[[RawShardWork], int],
    expectation: Expectation,
    rows: RawRows,
    *,
    skip: Positions,
    set_aside: Positions,
    ends: Positions | None,
    settings: dict[str, Any],
) -> expectations.ExpectationResult:
    """Let `write` hash the rows of each shard, and compare the hashes; `settings` are those of `RawRows.run`."""
    with rows.folder() as folder:
        files = [folder / f"{number:05}.hashes" for number in range(len(rows.parts))]
        considered = sum(rows.run(write, rows.parts, skip=skip, paths=files, **settings))
        work = partial(_in_bucket, files, [part.start for part in rows.parts], set_aside, ends)
        found = list(rows.workers.map(work, bucket_ranges(considered), what="buckets (equal rows)"))
    repeats = pd.concat([own for _, own in found]).sort_index()
    success = (
        expectations.is_expectation_met(expectation, sum(own for own, _ in found), considered)
        if ends is None
        else repeats.empty
    )
    stays = with_row_ids(rows, np.asarray(repeats, np.int64))
    return expectations.ExpectationResult(
        success, np.asarray(repeats.index, np.int64), considered=considered, repeats=stays
    )


def bucket_ranges(hashes: int) -> list[tuple[int, int]]:
    """Return the first and the last hash of each bucket, for so many hashes in all."""
    buckets = 1 << max(0, (hashes // BUCKET_ROWS).bit_length())
    width = (1 << 64) // buckets
    return [(n * width, (n + 1) * width - 1) for n in range(buckets)]


def with_row_ids(rows: RawRows, positions: Positions) -> NDArray[np.int64]:
    """Return N positions in any order with their row_ids, (2, N)."""
    known, places = np.unique(positions, return_inverse=True)
    found: NDArray[np.int64] = np.stack([known, rows.row_ids(known)])[:, places]
    return found


def write_shard_key_hashes(expectation: Expectation, work: RawShardWork) -> int:
    """Write the hashed keys of one shard, and return how many there are.

    They are an array (3, N) for `read_bucket`: first and second half of the hash; place in the shard.
    """
    columns, part = expectations.columns_named_by_expectations([expectation]), work.part
    table = part.table(work.columns)
    if expectation.type == checks.GROUP_IS_IN_ONE_SPLIT:
        group_by = {name: holds_several_types(part.rows.schema.field(name)) for name in columns}
        groups = [group_values_of_row(row, group_by) for row in values_of_rows(table.select(columns))]
        compared = np.setdiff1d(np.flatnonzero([group is not None for group in groups]), work.skip)
        for name in (name for name, is_mixed in group_by.items() if is_mixed):
            texts = pa.array([group and group[name] for group in groups], pa.string())
            table = table.set_column(table.column_names.index(name), name, texts)
    else:
        frame = drop_rows(table_to_frame(table, work.columns, part.split), work.skip)
        compared = expectations.positions_of_compared_rows(expectation, frame)
    assert work.path
    return _write_hashes(row_key_bytes(table.select(columns).take(compared)), compared, work.path)


def write_shard_content_hashes(objective: Objective[Any], work: RawShardWork) -> int:
    """Write the hashed contents of the rows of one shard, as `write_shard_key_hashes` does, and return how many there are."""
    places, keys = list[int](), list[bytes]()
    for place, row in work.each():
        places.append(place)
        keys.append(to_json(objectives.content_of_row(objective, row)).encode())
    assert work.path
    return _write_hashes(keys, np.array(places, np.int64), work.path)


def _write_hashes(keys: Iterable[bytes], places: Positions, path: Path) -> int:
    """Write the hashes of keys in order, each with its place in the shard, and return how many there are."""
    digests = b"".join(blake2b(key, digest_size=16).digest() for key in keys)
    halves = np.frombuffer(digests, "<u8").reshape(-1, 2).T
    order = np.lexsort((halves[1], halves[0]))
    ordered = np.concatenate([halves, places.astype(np.uint64)[None]])[:, order]
    write_array(path, ordered, has_header=False)
    return len(places)


def row_key_bytes(table: pa.Table) -> list[bytes]:
    """Return bytes for each row, which are equal if pandas' `duplicated` takes the rows as equal."""
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
            as_key = partial(json.dumps, sort_keys=True) if kind.equals(JSON) else repr
            values = [None if value is None else as_key(value) for value in values_of_column(column)]
            text = pa.chunked_array([pa.array(values, pa.string())])
        columns.append(pc.fill_null(text.cast(pa.large_binary()), pa.scalar(_NULL, pa.large_binary())))
    joined = (
        columns[0]
        if len(columns) == 1
        else pc.binary_join_element_wise(*columns, pa.scalar(_SEPARATOR, pa.large_binary()))
    )
    found: list[bytes] = joined.to_pylist()
    return found


def _in_bucket(
    files: Sequence[Path], starts: Sequence[int], set_aside: Positions, ends: Positions | None, bucket: tuple[int, int]
) -> tuple[int, pd.Series[int]]:
    """Return how many rows of a bucket have the key of another, and by position of each that fails the position of the row that stays.

    Only rows whose hash begins with a number from the first to the last of the bucket are read.
    """
    keys = read_bucket(files, starts, 3, bucket)
    position = keys[2].astype(np.int64)
    rows = pd.DataFrame({"one": keys[0], "two": keys[1], "position": position}, position)
    rows = rows[rows.duplicated(["one", "two"], keep=False)].sort_index()
    rows = rows.iloc[np.argsort(rows.index.isin(set_aside), kind="stable")]
    stays = rows.groupby(["one", "two"], sort=False)["position"].transform("first")
    if ends is None:
        return len(rows), stays[stays != rows["position"]]
    split, earlier = (np.searchsorted(ends, own, side="right") for own in (rows["position"], stays))
    return len(rows), stays[split > earlier]


def read_bucket(
    files: Sequence[Path], starts: Sequence[int], columns: int, bucket: tuple[int, int]
) -> NDArray[np.uint64]:
    """Return the columns of a bucket whose hash, in the first row, is not the only one, (K, M); the last row has positions of all rows.

    Each file has the bytes of an array (K, N) of uint64 with the hashes of a shard, ascending, and in the last row places in the shard, which
    begins at the position in `starts`. Every bucket opens all files, so a file has no header: `np.load` takes ten times as long.
    """
    first, last = map(np.uint64, bucket)
    read = [np.empty((columns, 0), np.uint64)]
    for path, position in zip(files, starts, strict=True):
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                continue
            stored = np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), np.uint64).reshape(columns, -1)
        own = slice(np.searchsorted(stored[0], first), np.searchsorted(stored[0], last, side="right"))
        read.append(np.array(stored[:, own]))
        read[-1][-1] += np.uint64(position)
    keys = np.concatenate(read, axis=1)
    return keys[:, pd.Series(keys[0]).duplicated(keep=False).to_numpy()]  # few are, so the rest takes no time

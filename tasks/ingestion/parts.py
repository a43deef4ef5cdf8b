"""The parts of a source: each gives one shard to every split that has some of its rows.

A part has `PART_ROWS` rows, or fewer, a power of two, if the first rows of its split are long. So the rows of a part depend neither on
how the source divides its rows into files and batches nor on the rows that come after it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from params import DataError, RecipeError
from params.problems import suggestion
from tasks.ingestion.batches import Batches, SourceBatch
from tasks.ingestion.file_index import FileRowIndex, FileRowRange
from tasks.ingestion.parquet import WrittenPart, part_file_name, write_part_shards
from tasks.ingestion.row_choice import RowChoice
from tasks.ingestion.row_limit import MAX_PART_BYTES, size_of_batch
from tasks.ingestion.sample import take_rows
from tasks.ingestion.source import OpenedSource
from tasks.ingestion.split_assigner import SplitAssigner, canonical_json
from tasks.progress import iterate_with_progress
from tasks.shards.kept_work import ShardTask, ShardWorkers
from tasks.shards.split_rows import JSON, values_of_column
from tasks.shards.times import NO_TIME, read_times

PART_ROWS = 65_536
"""The most rows of a part."""
_PART_BYTES = 64 << 20
_MEASURED_ROWS = 512
_MEASURED_BYTES = 1 << 30


def write_parts(
    source: OpenedSource, split: str, choice: RowChoice, division: SplitAssigner, *, folder: Path, workers: ShardWorkers
) -> Iterator[WrittenPart]:
    works = list[ShardTask[tuple[int, Sequence[FileRowRange]]]]()
    files, what = source.indexes(split), f"parts of {split}{f' of {choice.name}' if choice.name else ''}"
    if files is None:
        with contextlib.closing(source.batches(split)) as batches:
            parts = enumerate(divide_batches_into_parts(batches))
            yield from iterate_with_progress(
                map(partial(_write, choice, division, folder), parts), what=f"ingest: {what}"
            )
        return
    for number, pieces in enumerate(divide_files_into_parts(files)):
        key = f"{number} {[piece.key for piece in pieces]} {division} {choice}"
        # the source has the other splits
        paths = [
            folder / own / part_file_name(number, choice.name)
            for own in dict.fromkeys((division.source_split, *division.shares))
        ]
        works.append(ShardTask((number, pieces), key, paths))
    yield from workers.run(partial(_write_files, choice, division, folder), works, what=what)


def _write_files(
    choice: RowChoice, division: SplitAssigner, folder: Path, part: tuple[int, Sequence[FileRowRange]]
) -> WrittenPart:
    return _write(choice, division, folder, (part[0], read_file_ranges(part[1])))


def _write(
    choice: RowChoice, division: SplitAssigner, folder: Path, part: tuple[int, Iterator[SourceBatch]]
) -> WrittenPart:
    times, keys, names = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)], dict[str, None]()

    def with_splits() -> Iterator[tuple[SourceBatch, list[str]]]:
        size = 0
        for source_batch in part[1]:
            size += size_of_batch(source_batch.rows)
            if size > MAX_PART_BYTES:
                raise _too_large_part(source_batch)
            batch, rows, taken, own_names = take_rows(source_batch, choice)
            names.update(dict.fromkeys(own_names))
            if choice.time_column:
                is_there = choice.time_column in batch.rows.schema.names
                own = read_times(batch.rows[choice.time_column]) if is_there else np.full(len(rows), NO_TIME)
                times.append(own[np.array(taken, np.bool_)])
            if choice.max_rows:
                keys.append(_keys(rows))
            splits = division.of(rows)
            yield choice.named(batch), [split if own else "" for split, own in zip(splits, taken, strict=True)]

    written = write_part_shards(with_splits(), folder, part[0], choice.name)
    every = np.concatenate(times)
    known = every[every != NO_TIME]
    earliest, latest = (int(known.min()), int(known.max())) if len(known) else (NO_TIME, NO_TIME)
    untimed = len(every) - len(known)
    more: Any = {"names": tuple(names), "untimed": untimed, "keys": np.concatenate(keys)}
    return replace(written, earliest_us=earliest, latest_us=latest, **more)


def _too_large_part(batch: SourceBatch) -> DataError:
    what = f"the rows up to here have more than {MAX_PART_BYTES >> 30} GiB together, and are kept in memory together"
    fix = "put rows as long as these first, so that parts get fewer rows; a small file can stand for very many bytes"
    return DataError(batch.address(0), what, fix)


def _keys(rows: Iterable[Mapping[str, Any]]) -> NDArray[np.uint64]:
    """Return a hash of each row. `data.split` uses another one: with the same, the smallest hashes would all be held out."""
    digests = (hashlib.blake2b(canonical_json(row).encode(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), np.uint64)


def check_columns(names: Sequence[str], columns: Sequence[str], key: str = "data.group_by") -> None:
    """Raise a RecipeError if a column that the recipe names under `key` is not one of `names`."""
    for name in columns:
        if name not in names:
            fix = suggestion(name, names, "columns")
            raise RecipeError.at(key, f"the rows have no column `{name}`", fix)


def divide_batches_into_parts(batches: Batches) -> Iterator[Iterator[SourceBatch]]:
    """Divide the rows of a split; read each part to its end before the next."""
    first = _first(batches)
    size = _part_rows(first)
    rest: SourceBatch | None = None
    remaining = chain(first, batches)

    def part() -> Iterator[SourceBatch]:
        nonlocal rest
        missing = size
        while rest and missing:
            batch, rest = rest.divide(missing)
            missing -= len(batch.rows)
            yield batch
            rest = rest or next(remaining, None)

    rest = next(remaining, None)
    while rest:
        yield part()


def divide_files_into_parts(files: Sequence[FileRowIndex]) -> Iterator[tuple[FileRowRange, ...]]:
    """Divide the rows of a split into the same parts as `divide_batches_into_parts`, without reading them; a part can have pieces of several files."""
    with contextlib.closing(read_file_ranges(file.piece(0, _MEASURED_ROWS) for file in files if file.rows)) as batches:
        size = _part_rows(_first(batches))
    part, missing = list[FileRowRange](), size
    for file in files:
        row = 0
        while row < file.rows:
            part.append(file.piece(row, missing))
            row += part[-1].rows
            missing -= part[-1].rows
            if not missing:
                yield tuple(part)
                part, missing = [], size
    if part:
        yield tuple(part)


def read_file_ranges(pieces: Iterable[FileRowRange]) -> Batches:
    for piece in pieces:
        yield from piece.batches()


def _first(batches: Batches) -> list[SourceBatch]:
    """Read the batches that the first rows are in."""
    first, count, size = list[SourceBatch](), 0, 0
    while count < _MEASURED_ROWS and size < _MEASURED_BYTES:
        batch = next(batches, None)
        if batch is None:
            break
        first.append(batch)
        count += len(batch.rows)
        size += size_of_batch(batch.rows)
    return first


def _part_rows(first: Sequence[SourceBatch]) -> int:
    """Return the rows of a part of the split that begins with these batches."""
    count = size = 0
    for batch in first:
        measured = batch.rows.slice(0, _MEASURED_ROWS - count)
        count, size = count + len(measured), size + sum(map(_values_bytes, measured.columns))
    rows = _PART_BYTES * count // size if size else PART_ROWS
    return min(PART_ROWS, 1 << max(0, rows.bit_length() - 1))


def _values_bytes(column: pa.Array) -> int:
    """Return the bytes of a column's values, as Arrow has them if it can, however they are stored: parts stay the same."""
    if column.type.equals(JSON):
        with contextlib.suppress(pa.ArrowException, ArithmeticError, TypeError):
            column = pa.array(values_of_column(column))
    return int(column.nbytes)

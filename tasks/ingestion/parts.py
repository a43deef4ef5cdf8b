"""Divide a source into parts, each of which gives one shard of a split.

A part has `PART_ROWS` rows of a split of the source, or fewer, a power of two, if the first rows of that split are long. So the rows of a part
depend neither on how the source divides its rows into files and batches nor on the rows that come after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain

from tasks.ingestion.batches import Batch, Batches
from tasks.ingestion.file_index import FileIndex, FileRowRange

PART_ROWS = 65_536
"""The most rows of a part."""
_PART_BYTES = 64 << 20
_MEASURED_ROWS = 512


def split_into_parts(batches: Batches) -> Iterator[Iterator[Batch]]:
    """Divide the rows of a split; read each part to its end before the next."""
    first = _first(batches)
    size = _part_rows(first)
    rest: Batch | None = None
    remaining = chain(first, batches)

    def part() -> Iterator[Batch]:
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


def split_files_into_parts(files: Sequence[FileIndex]) -> Iterator[tuple[FileRowRange, ...]]:
    """Divide the rows of a split into the same parts as `split_into_parts`, without reading them; a part can have pieces of several files."""
    with closing(read_pieces(file.piece(0, _MEASURED_ROWS) for file in files if file.rows)) as batches:
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


def read_pieces(pieces: Iterable[FileRowRange]) -> Batches:
    """Yield the rows of several pieces."""
    for piece in pieces:
        yield from piece.batches()


def _first(batches: Batches) -> list[Batch]:
    """Read the batches that the first rows are in."""
    first, count = list[Batch](), 0
    while count < _MEASURED_ROWS and (batch := next(batches, None)):
        first.append(batch)
        count += len(batch.rows)
    return first


def _part_rows(first: Sequence[Batch]) -> int:
    """Return the rows of a part of the split that begins with these batches."""
    count = size = 0
    for batch in first:
        measured = batch.rows.slice(0, _MEASURED_ROWS - count)
        count, size = count + len(measured), size + int(measured.nbytes)
    rows = _PART_BYTES * count // size if size else PART_ROWS
    return min(PART_ROWS, 1 << max(0, rows.bit_length() - 1))

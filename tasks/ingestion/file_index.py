"""Where the rows of a file are, so that several processes can read parts of it, and unchanged parts are known by their hash."""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

from params.hashing import file_sha256
from tasks.executor import usable_cpus
from tasks.ingestion.batches import AddressedRows, Batches, to_batches
from tasks.ingestion.formats import (
    JSON_SUFFIXES,
    CsvColumns,
    Place,
    csv_rows,
    json_rows,
    open_parquet,
    parquet_batches,
    read_errors,
    scan_csv,
    scan_json,
)
from tasks.progress import made_progress

INDEXED = (".csv", *JSON_SUFFIXES, ".parquet")
"""Suffixes of the formats that can be read from any row on."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a file."""

    path: Path
    name: str
    first: int
    """Number of the first row in the file."""
    rows: int
    begin: Place
    """Where to begin to read, at that row or before it."""
    csv_columns: CsvColumns | None
    key: str
    """Hash of all that the rows and their addresses depend on."""

    def batches(self) -> Batches:
        """Yield the rows.

        Raises:
            DataError: a row is malformed, or the file has changed.
        """
        with read_errors(self.path, self.name):
            if self.path.suffix.lower() == ".parquet":
                yield from parquet_batches(self.path, self.name, self.first, self.rows)
            elif self.csv_columns is not None:
                yield from to_batches(self._own(csv_rows(self.path, self.name, self.csv_columns, self.begin)))
            else:
                yield from to_batches(self._own(json_rows(self.path, self.name, self.begin)))

    def _own(self, rows: AddressedRows) -> AddressedRows:
        skip = self.first - self.begin.row
        with closing(rows):
            yield from islice(rows, skip, skip + self.rows)


@dataclass(frozen=True)
class FileIndex:
    """The rows of a file."""

    path: Path
    name: str
    rows: int
    sha256: str
    """Hash of the content: of the file, or of `hashes`."""
    places: Sequence[Place]
    """Places of rows, from the first on; empty for Parquet, which has its own."""
    hashes: Sequence[str]
    """Hash of the bytes from each place to the next one; the first begins with the file."""
    csv_columns: CsvColumns | None = None

    def piece(self, first: int, rows: int) -> Piece:
        """Return the rows from number `first` on, at most `rows`."""
        rows = min(rows, self.rows - first)
        begin, content = Place(), [self.sha256]
        if self.places:
            start = bisect_right(self.places, first, key=lambda place: place.row) - 1
            stop = bisect_left(self.places, first + rows, key=lambda place: place.row)
            begin, content = self.places[start], [*self.hashes[start:stop]]
        columns = (
            None if self.csv_columns is None else [(name, kind.__name__) for name, kind in self.csv_columns.items()]
        )
        key = hashlib.sha256(repr([content, first - begin.row, rows, self.name, begin.line, columns]).encode())
        return Piece(self.path, self.name, first, rows, begin, self.csv_columns, key.hexdigest())


def index_file(path: Path, name: str) -> FileIndex:
    """Find the rows of a file of one of the formats in `INDEXED`; the work of a fast look at all of it.

    Raises:
        DataError: the file is empty or unreadable. Rows are checked only as far as that finds them.
    """
    suffix, columns = path.suffix.lower(), None
    with read_errors(path, name):
        if suffix == ".parquet":
            with open_parquet(path, name) as file:
                return FileIndex(path, name, file.metadata.num_rows, file_sha256(path), (), ())
        if suffix == ".csv":
            columns, places, rows = scan_csv(path, name)
        else:
            places, rows = scan_json(path)
        hashes = _hashes(path, [0, *(place.offset for place in places[1:])])
        return FileIndex(path, name, rows, hashlib.sha256(repr(hashes).encode()).hexdigest(), places, hashes, columns)


def _hashes(path: Path, offsets: Sequence[int]) -> list[str]:
    """Return the hash of a file's bytes from each of the offsets to the next one. Threads do it side by side, without Python's lock."""
    ranges = list(itertools.pairwise([*offsets, None]))
    threads = usable_cpus()
    size = -(-len(ranges) // threads)
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(partial(_hashes_of, path), (ranges[i : i + size] for i in range(0, len(ranges), size)))
        return [own for several in found for own in several]


def _hashes_of(path: Path, ranges: Sequence[tuple[int, int | None]]) -> list[str]:
    """Return the hash of each of some ranges that follow each other."""
    hashes = []
    with path.open("rb") as file:
        file.seek(ranges[0][0])
        for start, stop in ranges:
            found = hashlib.sha256()
            for block in _blocks(file, None if stop is None else stop - start):
                found.update(block)
            made_progress()
            hashes.append(found.hexdigest())
    return hashes


def _blocks(file: IO[bytes], count: int | None) -> Iterator[bytes]:
    """Yield the next `count` bytes, or all that are left."""
    while block := file.read(_BLOCK_BYTES if count is None else min(count, _BLOCK_BYTES)):
        count = None if count is None else count - len(block)
        yield block

"""Where the rows of a file are, so that several processes can read parts of it, and unchanged parts are known by their hash."""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

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
from tasks.ingestion.hashed_file import END, HashedFile, PartInMemory, hash_of
from tasks.shards.executor import usable_cpus

INDEXED = (".csv", *JSON_SUFFIXES, ".parquet")
"""Suffixes of the formats that can be read from any row on."""
_READ_BYTES = 1 << 18
_MAGIC = b"PAR1"
_AFTER_FOOTER_BYTES = 8
"""A Parquet file ends with the length of its footer and four letters."""


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
    offsets: Sequence[int]
    """Offsets in the file between which the bytes are hashed; all rows are between the first and the last."""
    sha256: str
    """Hash of these bytes, as `hash_of` gives it."""
    footer: tuple[int, str] | None
    """For a Parquet file: the offset of its footer, and the hash."""
    csv_columns: CsvColumns | None
    key: str
    """Hash of all that the rows and their addresses depend on."""

    def batches(self) -> Batches:
        """Yield the rows. Whoever takes all of them knows that they are those of the hashed bytes.

        Raises:
            DataError: a row is malformed.
            InputsChangedError: the file is not what was hashed.
        """
        with (
            read_errors(self.path, self.name),
            HashedFile(self.path, self.offsets) as file,
            io.BufferedReader(file, _READ_BYTES) as lines,
        ):
            try:
                yield from self._parquet_batches(file) if self.footer else to_batches(self._own(lines))
            except Exception:
                file.check(self.name, self.sha256)  # if it has changed, that is the reason
                raise
            file.check(self.name, self.sha256)

    def _parquet_batches(self, file: HashedFile) -> Batches:
        """Yield the rows from memory: the row groups that have them, and what describes these; both are what was hashed."""
        assert self.footer, "the file is not Parquet"
        offset, sha256 = self.footer
        with HashedFile(self.path, [offset, END]) as rest:
            footer = rest.readall()
            rest.check(self.name, sha256)
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
        groups = PartInMemory(file.readall(), self.offsets[0])
        file.check(self.name, self.sha256)
        with open_parquet(pa.PythonFile(groups, mode="r"), self.name, metadata) as parquet:
            yield from parquet_batches(parquet, self.name, self.first, self.rows)

    def _own(self, lines: IO[bytes]) -> AddressedRows:
        if self.csv_columns is not None:
            rows = csv_rows(lines, self.name, self.csv_columns, self.begin)
        else:
            rows = json_rows(lines, self.name, self.begin)
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
    """Hash of the content, from `hashes`."""
    places: Sequence[Place]
    """Places of rows, from the first on: of a Parquet file those of its row groups, and then that of its footer."""
    hashes: Sequence[str]
    """Hash of the bytes from each place to the next one; the first begins with the file."""
    csv_columns: CsvColumns | None = None

    def piece(self, first: int, rows: int) -> Piece:
        """Return the rows from number `first` on, at most `rows`."""
        rows = min(rows, self.rows - first)
        is_parquet = self.path.suffix.lower() == ".parquet"
        footer = (self.places[-1].offset, hash_of(self.hashes[-1:])) if is_parquet else None
        start = bisect_right(self.places, first, key=lambda place: place.row) - 1
        stop = bisect_left(self.places, first + rows, key=lambda place: place.row)
        begin, sha256 = self.places[start], hash_of(self.hashes[start:stop])
        offsets = [place.offset for place in self.places[start : stop + 1]]
        if stop == len(self.places):
            offsets.append(END)
        columns = (
            None if self.csv_columns is None else [(name, kind.__name__) for name, kind in self.csv_columns.items()]
        )
        key = repr([sha256, footer, first - begin.row, rows, self.name, begin.line, columns])
        key = hashlib.sha256(key.encode()).hexdigest()
        return Piece(self.path, self.name, first, rows, begin, offsets, sha256, footer, self.csv_columns, key)


def index_file(path: Path, name: str) -> FileIndex:
    """Find the rows of a file of one of the formats in `INDEXED`; the work of a fast look at all of it.

    Raises:
        DataError: the file is empty or unreadable. Rows are checked only as far as that finds them.
    """
    suffix, columns = path.suffix.lower(), None
    with read_errors(path, name):
        if suffix == ".parquet":
            places, rows = _scan_parquet(path, name)
        elif suffix == ".csv":
            columns, places, rows = scan_csv(path, name)
        else:
            places, rows = scan_json(path)
        hashes = _hashes(path, [0, *(place.offset for place in places[1:])])
        return FileIndex(path, name, rows, hash_of(hashes), places, hashes, columns)


def _scan_parquet(path: Path, name: str) -> tuple[list[Place], int]:
    """Return the places of the row groups and of the footer, and the number of rows."""
    with open_parquet(path, name) as file:
        metadata, rows, places = file.metadata, 0, list[Place]()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        pages = [page for c in columns for page in (c.dictionary_page_offset, c.data_page_offset) if page is not None]
        places.append(Place(rows, min(pages, default=0)))
        rows += group.num_rows
    offsets = [place.offset for place in places]
    if any(after <= before for before, after in pairwise(offsets)):  # a writer put them in another order
        places = []
    footer = Place(rows, path.stat().st_size - _AFTER_FOOTER_BYTES - int(metadata.serialized_size))
    return [Place(), *places[1:], footer], rows


def _hashes(path: Path, offsets: Sequence[int]) -> list[str]:
    """Return the hash of a file's bytes from each of the offsets to the next one. Threads do it side by side, without Python's lock."""
    threads = usable_cpus()
    size = -(-len(offsets) // threads)
    parts = [[*offsets[i : i + size + 1]] for i in range(0, len(offsets), size)]
    parts[-1].append(END)
    with ThreadPoolExecutor(threads) as pool:
        return [own for several in pool.map(partial(_hashes_of, path), parts) for own in several]


def _hashes_of(path: Path, offsets: Sequence[int]) -> list[str]:
    with HashedFile(path, offsets) as file:
        return file.read_rest()

"""Where the rows of a file are, so that several processes can read parts of it, and unchanged parts are known by their hash."""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import IO

from params import InputsChangedError
from tasks.ingestion.batches import AddressedRows, Batches, to_batches
from tasks.ingestion.formats import (
    JSON_SUFFIXES,
    CsvColumns,
    TextFilePosition,
    csv_rows,
    index_csv,
    index_json_lines,
    json_rows,
    open_parquet,
    parquet_batches,
    translate_read_errors,
)
from tasks.progress import note_progress
from tasks.shards.executor import usable_cpus

INDEXED = (".csv", *JSON_SUFFIXES, ".parquet")
"""Suffixes of the formats that can be read from any row on."""
_BLOCK_BYTES = 1 << 20
_END = sys.maxsize
"""The offset of a file's end."""
_AFTER_FOOTER_BYTES = 8
"""A Parquet file ends with the length of its footer and four letters."""


@dataclass(frozen=True)
class FileRowRange:
    """Consecutive rows of a file."""

    path: Path
    name: str
    first: int
    """Number of the first row in the file."""
    rows: int
    begin: TextFilePosition
    """Where to begin to read, at that row or before it."""
    offsets: Sequence[int]
    """Offsets in the file between which the bytes are hashed; all rows are between the first and the last."""
    sha256: str
    """Hash of these bytes, as `_hash_of` gives it."""
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
        with translate_read_errors(self.path, self.name):
            state = _state(self.path)
            try:
                yield from self._unchecked()
            except Exception:
                self._check(state)  # if the file has changed, that is the reason
                raise
            self._check(state)

    def _unchecked(self) -> Batches:
        if self.footer:
            with open_parquet(self.path, self.name) as parquet:
                yield from parquet_batches(parquet, self.name, self.first, self.rows)
            return
        with self.path.open("rb") as lines:
            lines.seek(self.begin.offset)
            yield from to_batches(self._own(lines))

    def _own(self, lines: IO[bytes]) -> AddressedRows:
        if self.csv_columns is not None:
            rows = csv_rows(lines, self.name, self.csv_columns, self.begin)
        else:
            rows = json_rows(lines, self.name, self.begin)
        skip = self.first - self.begin.row
        with closing(rows):
            yield from islice(rows, skip, skip + self.rows)

    def _check(self, state: tuple[int, int]) -> None:
        """Check the bytes, and that no edit was undone since the file had this state."""
        expected = [(self.offsets, self.sha256)]
        if self.footer:
            expected.append(([self.footer[0], _END], self.footer[1]))
        differ = any(_hash_of(_hashes_of(self.path, offsets)) != sha256 for offsets, sha256 in expected)
        if differ or _state(self.path) != state:
            what = "changed while its rows were read"
            raise InputsChangedError(self.name, what, "run the recipe again when nothing writes to it any more")


@dataclass(frozen=True)
class FileIndex:
    """The rows of a file."""

    path: Path
    name: str
    rows: int
    sha256: str
    """Hash of the content, from `hashes`."""
    places: Sequence[TextFilePosition]
    """Places of rows, from the first on: of a Parquet file those of its row groups, and then that of its footer."""
    hashes: Sequence[str]
    """Hash of the bytes from each place to the next one; the first begins with the file."""
    csv_columns: CsvColumns | None = None

    def piece(self, first: int, rows: int) -> FileRowRange:
        """Return the rows from number `first` on, at most `rows`."""
        rows = min(rows, self.rows - first)
        is_parquet = self.path.suffix.lower() == ".parquet"
        footer = (self.places[-1].offset, _hash_of(self.hashes[-1:])) if is_parquet else None
        start = bisect_right(self.places, first, key=lambda place: place.row) - 1
        stop = bisect_left(self.places, first + rows, key=lambda place: place.row)
        begin, sha256 = self.places[start], _hash_of(self.hashes[start:stop])
        offsets = [place.offset for place in self.places[start : stop + 1]]
        if stop == len(self.places):
            offsets.append(_END)
        columns = (
            None if self.csv_columns is None else [(name, kind.__name__) for name, kind in self.csv_columns.items()]
        )
        key = repr([sha256, footer, first - begin.row, rows, self.name, begin.line, columns])
        key = hashlib.sha256(key.encode()).hexdigest()
        return FileRowRange(self.path, self.name, first, rows, begin, offsets, sha256, footer, self.csv_columns, key)


def index_file(path: Path, name: str) -> FileIndex:
    """Find the rows of a file of one of the formats in `INDEXED`; the work of a fast look at all of it.

    Raises:
        DataError: the file is empty or unreadable. Rows are checked only as far as that finds them.
    """
    suffix, columns = path.suffix.lower(), None
    with translate_read_errors(path, name):
        if suffix == ".parquet":
            places, rows = _scan_parquet(path, name)
        elif suffix == ".csv":
            columns, places, rows = index_csv(path, name)
        else:
            places, rows = index_json_lines(path)
        hashes = _hashes(path, [0, *(place.offset for place in places[1:])])
        return FileIndex(path, name, rows, _hash_of(hashes), places, hashes, columns)


def _scan_parquet(path: Path, name: str) -> tuple[list[TextFilePosition], int]:
    """Return the places of the row groups and of the footer, and the number of rows."""
    with open_parquet(path, name) as file:
        metadata, rows, places = file.metadata, 0, list[TextFilePosition]()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        pages = [page for c in columns for page in (c.dictionary_page_offset, c.data_page_offset) if page is not None]
        places.append(TextFilePosition(rows, min(pages, default=0)))
        rows += group.num_rows
    offsets = [place.offset for place in places]
    if not _are_ascending(offsets):  # a writer put them in another order
        places = []
    footer = TextFilePosition(rows, path.stat().st_size - _AFTER_FOOTER_BYTES - int(metadata.serialized_size))
    return [TextFilePosition(), *places[1:], footer], rows


def _are_ascending(offsets: Sequence[int]) -> bool:
    return all(before < after for before, after in pairwise(offsets))


def _hashes(path: Path, offsets: Sequence[int]) -> list[str]:
    """Return the hash of a file's bytes from each of the offsets to the next one. Threads do it side by side, without Python's lock."""
    threads = usable_cpus()
    size = -(-len(offsets) // threads)
    parts = [[*offsets[i : i + size + 1]] for i in range(0, len(offsets), size)]
    parts[-1].append(_END)
    with ThreadPoolExecutor(threads) as pool:
        return [own for several in pool.map(partial(_hashes_of, path), parts) for own in several]


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _hashes_of(path: Path, offsets: Sequence[int]) -> list[str]:
    """Return the hash of the bytes from each of the offsets to the next one; the last one may be `_END`."""
    hashes = []
    with path.open("rb") as file:
        file.seek(offsets[0])
        for start, stop in pairwise(offsets):
            found, left = hashlib.sha256(), stop - start
            while block := file.read(min(left, _BLOCK_BYTES)):
                found.update(block)
                left -= len(block)
                note_progress()
            hashes.append(found.hexdigest())
    return hashes


def _hash_of(hashes: Sequence[str]) -> str:
    """Return one hash for those of several ranges."""
    return hashlib.sha256(repr(list(hashes)).encode()).hexdigest()

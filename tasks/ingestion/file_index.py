"""Where the rows of a file are, so that several processes can read parts of it, and unchanged parts are known by their hash.

An index is remembered for the next run, with fast hashes of the bytes that it is of.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

from params import InputsChangedError
from tasks.ingestion import formats
from tasks.ingestion.batches import Batches
from tasks.ingestion.encodings import TextFilePosition, format_suffix, translate_read_errors
from tasks.ingestion.json_files import index_json_lines
from tasks.ingestion.tables import TABLE_SUFFIXES, TableLayout, index_table
from tasks.progress import reset_idle_timer
from tasks.shards.executor import count_usable_cpus
from tasks.shards.kept_work import read_pickle, write_pickle

_BLOCK_BYTES = 1 << 20
_END = sys.maxsize
"""The offset of a file's end."""
_AFTER_FOOTER_BYTES = 8
"""A Parquet file ends with the length of its footer and four letters."""
_SETTLED_S = 2.0
"""Age of a change from which on any file system gives a later one another time."""


@dataclass(frozen=True)
class FileRowRange:
    """Consecutive rows of a file."""

    path: Path
    name: str
    first: int
    rows: int
    begin: TextFilePosition
    """Where to begin to read, at that row or before it."""
    hashed: Sequence[tuple[Sequence[int], str]]
    """Offsets in the file between which the bytes are hashed, and the hash: of all that the rows are in, and of a Parquet file's footer."""
    layout: TableLayout | None
    key: str
    """Hash of all that the rows and their addresses depend on."""

    def batches(self) -> Batches:
        """Yield the rows. Whoever takes all of them knows that they are those of the hashed bytes.

        Raises:
            DataError: a row is malformed.
            InputsChangedError: the file is not what was hashed.
        """
        with translate_read_errors(self.path, self.name):
            state = _state(self.path.stat())
            try:
                yield from formats.read_rows_of_file(
                    self.path, self.name, layout=self.layout, begin=self.begin, first=self.first, rows=self.rows
                )
            finally:  # if the file has changed, that is the reason of an error; an edit may have been undone, too
                differ = any(_hash_of(_hashes_of(self.path, offsets)) != sha256 for offsets, sha256 in self.hashed)
                if differ or _state(self.path.stat()) != state:
                    raise _changed_error(self.name)


@dataclass(frozen=True)
class FileRowIndex:
    """The rows of a file."""

    path: Path
    name: str
    rows: int
    sha256: str
    places: Sequence[TextFilePosition]
    """Places of rows, from the first on: of a Parquet file those of its row groups, and then that of its footer."""
    hashes: Sequence[str]
    """Hash of the bytes from each place to the next one; the first begins with the file."""
    layout: TableLayout | None = None

    def piece(self, first: int, rows: int) -> FileRowRange:
        """Return the rows from number `first` on, at most `rows`."""
        rows = min(rows, self.rows - first)
        start = bisect_right(self.places, first, key=lambda place: place.row) - 1
        stop = bisect_left(self.places, first + rows, key=lambda place: place.row)
        begin, offsets = self.places[start], [place.offset for place in self.places[start : stop + 1]]
        if not start:
            offsets[0] = 0  # the hash also has the blank lines before the first row
        if stop == len(self.places):
            offsets.append(_END)
        hashed = [(offsets, _hash_of(self.hashes[start:stop]))]
        if _is_parquet(self.path):
            hashed.append(([self.places[-1].offset, _END], _hash_of(self.hashes[-1:])))
        layout = self.layout and (
            [(name, kind.__name__) for name, kind in self.layout.columns.items()],
            self.layout.delimiter,
            self.layout.has_quoted_cells,
        )
        hashes = [sha256 for _, sha256 in hashed]
        key = _hash_of([hashes, first - begin.row, rows, self.name, begin.line, layout])
        return FileRowRange(self.path, self.name, first, rows, begin, hashed, self.layout, key)


@dataclass(frozen=True)
class _Remembered:
    """An index, and fast hashes that tell which bytes of the file are still those that it is of."""

    index: FileRowIndex
    seed: int
    fast: Sequence[str]
    """As `index.hashes`."""

    def count_equal(self, path: Path) -> int:
        """Return how many of the hashed ranges of the file, from its beginning on, have not changed."""
        now = _hashes(path, _offsets(self.index.places), partial(xxh3_128, seed=self.seed))
        pairs = enumerate(zip(self.fast, now, strict=True))
        return next((i for i, (before, found) in pairs if before != found), len(now))


class _BothHashes:
    """SHA-256 and a fast hash of the same bytes."""

    def __init__(self, seed: int) -> None:
        self._found = hashlib.sha256(), xxh3_128(seed=seed)

    def update(self, block: bytes) -> None:
        for one in self._found:
            one.update(block)

    def hexdigest(self) -> str:
        return " ".join(one.hexdigest() for one in self._found)


def index_file(path: Path, name: str, memory: Path | None = None) -> FileRowIndex:
    """Find the rows of a file that `has_places`; the work of a fast look at all of it.

    What is found is written to `memory`. The next call takes it from there where a fast hash shows that the bytes are the same: those of
    the whole file, or of lines of JSON before the first change. Times and sizes prove nothing: programs set them, and clocks are set back.

    Raises:
        DataError: the file is empty or unreadable. Rows are checked only as far as that finds them.
        InputsChangedError: the file has changed meanwhile.
    """
    layout, equal = None, 0
    known: _Remembered | None = None
    with translate_read_errors(path, name):
        if memory:
            with contextlib.suppress(OSError):
                known = read_pickle(memory)
        before, begun_s = path.stat(), time.time()
        if known and (equal := known.count_equal(path)) == len(known.fast):
            return replace(known.index, path=path)
        first: Sequence[TextFilePosition] = ()
        if _is_parquet(path):
            places, rows = _scan_parquet(path, name)
        elif format_suffix(path) in TABLE_SUFFIXES:
            layout, places, rows = index_table(path, name)
        else:
            first = known.index.places[: equal + 1] if known and equal else ()
            places, rows = index_json_lines(path, first)
        same, seed = max(0, min(len(first), len(places)) - 1), known.seed if known else secrets.randbits(64)
        found = [both.split() for both in _hashes(path, _offsets(places)[same:], partial(_BothHashes, seed))]
        hashes = [*(known.index.hashes[:same] if known else ()), *(one for one, _ in found)]
        fast = [*(known.fast[:same] if known else ()), *(one for _, one in found)]
        index = FileRowIndex(path, name, rows, _hash_of(hashes), places, hashes, layout)
        # a change in between that left no other time, because it came too soon after the one before it, would stay unknown
        after, is_old = path.stat(), begun_s - before.st_ctime > _SETTLED_S
        if _state(before) != _state(after):  # what is known of it and what was read may be of two versions
            raise _changed_error(name)
        if memory and is_old and before.st_ctime_ns == after.st_ctime_ns:
            with contextlib.suppress(OSError):
                write_pickle(memory, _Remembered(index, seed, fast))
        return index


def _changed_error(name: str) -> InputsChangedError:
    fix = "run the recipe again when nothing writes to it any more"
    return InputsChangedError(name, "changed while its rows were read", fix)


def _offsets(places: Sequence[TextFilePosition]) -> list[int]:
    """Return where each hashed range begins: the first one with the file, also if blank lines are before its first row."""
    return [0, *(place.offset for place in places[1:])]


def _scan_parquet(path: Path, name: str) -> tuple[list[TextFilePosition], int]:
    """Return the places of the row groups and of the footer, and the number of rows."""
    with formats.open_parquet(path, name) as file:
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


def _hashes(path: Path, offsets: Sequence[int], new: Callable[[], Any] = hashlib.sha256) -> list[str]:
    """Return the hash of a file's bytes from each of the offsets to the next one. Threads do it side by side, without Python's lock."""
    threads = count_usable_cpus()
    size = -(-len(offsets) // threads)
    parts = [[*offsets[i : i + size + 1]] for i in range(0, len(offsets), size)]
    parts[-1].append(_END)
    with ThreadPoolExecutor(threads) as pool:
        return [own for several in pool.map(partial(_hashes_of, path, new=new), parts) for own in several]


def _state(found: os.stat_result) -> tuple[int, ...]:
    """Return what an edit of a file changes, too. Its `st_ctime` also changes when a backup links to it."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _hashes_of(path: Path, offsets: Sequence[int], new: Callable[[], Any] = hashlib.sha256) -> list[str]:
    """Return the hash of the bytes from each of the offsets to the next one; the last one may be `_END`."""
    hashes = []
    with path.open("rb") as file:
        file.seek(offsets[0])
        for start, stop in pairwise(offsets):
            found, left = new(), stop - start
            while block := file.read(min(left, _BLOCK_BYTES)):
                found.update(block)
                left -= len(block)
                reset_idle_timer()
            hashes.append(found.hexdigest())
    return hashes


def _hash_of(values: Sequence[object]) -> str:
    """Return one hash for those of several ranges, or for other values."""
    return hashlib.sha256(repr(list(values)).encode()).hexdigest()


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"

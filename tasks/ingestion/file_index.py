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
from tasks.ingestion.encodings import TextFilePosition, translate_read_errors
from tasks.ingestion.formats.base import Layout, RowPlaces, WantedRows
from tasks.progress import reset_idle_timer
from tasks.shards.executor import count_usable_cpus
from tasks.shards.kept_work import read_pickle, write_pickle

_BLOCK_BYTES = 1 << 20
_END = sys.maxsize
"""The offset of a file's end."""
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
    """Offsets in the file between which the bytes are hashed, and the hash: of all that the rows are in, and of a footer, if there is one."""
    layout: Layout | None
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
                wanted = WantedRows(self.first, self.rows, self.begin, self.layout)
                yield from formats.read_rows_of_file(self.path, self.name, wanted)
            finally:  # if the file has changed, that is the reason of an error; an edit may have been undone, too
                differ = any(_hash_of(_hashes_of(self.path, offsets)) != sha256 for offsets, sha256 in self.hashed)
                if differ or _state(self.path.stat()) != state:
                    raise _changed_error(self.name)


@dataclass(frozen=True)
class FileRowIndex:
    path: Path
    name: str
    sha256: str
    hashes: Sequence[str]
    """Hash of the bytes from each place to the next one; the first begins with the file."""
    found: RowPlaces

    @property
    def rows(self) -> int:
        return self.found.rows

    def piece(self, first: int, rows: int) -> FileRowRange:
        """Return the rows from number `first` on, at most `rows`."""
        places, layout = self.found.places, self.found.layout
        rows = min(rows, self.rows - first)
        start = bisect_right(places, first, key=lambda place: place.row) - 1
        stop = bisect_left(places, first + rows, key=lambda place: place.row)
        begin, offsets = places[start], [place.offset for place in places[start : stop + 1]]
        if not start:
            offsets[0] = 0  # the hash also has the blank lines before the first row
        if stop == len(places):
            offsets.append(_END)
        hashed = [(offsets, _hash_of(self.hashes[start:stop]))]
        if self.found.ends_with_footer:
            hashed.append(([places[-1].offset, _END], _hash_of(self.hashes[-1:])))
        hashes = [sha256 for _, sha256 in hashed]
        package = formats.format_of(self.path).package
        known = [package] if package else []
        key = _hash_of([hashes, first - begin.row, rows, self.name, begin.line, layout and layout.key, *known])
        return FileRowRange(self.path, self.name, first, rows, begin, hashed, layout, key)


@dataclass(frozen=True)
class _RememberedIndex:
    """An index, and fast hashes that tell which bytes of the file are still those that it is of."""

    index: FileRowIndex
    seed: int
    fast: Sequence[str]
    """As `index.hashes`."""
    package: str = ""
    """The one that has brought the format."""

    def count_equal(self, path: Path) -> int:
        """Return how many of the hashed ranges of the file, from its beginning on, have not changed."""
        now = _hashes(path, _offsets(self.index.found.places), partial(xxh3_128, seed=self.seed))
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
    """Find the rows of a file that can be cut; the work of a fast look at all of it.

    What is found is written to `memory`. The next call takes it from there where a fast hash shows that the bytes are the same: those of
    the whole file, or, if its format `continues`, before the first change. Times and sizes prove nothing: programs set them, and clocks are set back.

    Raises:
        DataError: the file is empty or unreadable. Rows are checked only as far as that finds them.
        InputsChangedError: the file has changed meanwhile.
    """
    known = _read_memory(memory, formats.format_of(path).package)
    with translate_read_errors(path, name):
        before, begun_s = path.stat(), time.time()
        equal = known.count_equal(path) if known else 0
        if known and equal == len(known.fast):
            return replace(known.index, path=path)
        found = _look(path, name, known, equal)
        # a change in between that left no other time, because it came too soon after the one before it, would stay unknown
        after, is_old = path.stat(), begun_s - before.st_ctime > _SETTLED_S
        if _state(before) != _state(after):  # what is known of it and what was read may be of two versions
            raise _changed_error(name)
        if memory and is_old and before.st_ctime_ns == after.st_ctime_ns:
            with contextlib.suppress(OSError):
                write_pickle(memory, found)
        return found.index


def _read_memory(memory: Path | None, package: str) -> _RememberedIndex | None:
    """Return what is remembered of a file, if it was found by the same version of a package."""
    if memory:
        with contextlib.suppress(OSError):
            found: _RememberedIndex = read_pickle(memory)
            return found if found.package == package else None
    return None


def _look(path: Path, name: str, known: _RememberedIndex | None, equal: int) -> _RememberedIndex:
    """Find the rows of a file, of which the first `equal` hashed ranges are known, if an index of it is."""
    own_format = formats.format_of(path)
    first: Sequence[TextFilePosition] = ()
    if known and equal and own_format.continues:
        first = known.index.found.places[: equal + 1]
    places = own_format.find_places(path, name, first)
    same = max(0, min(len(first), len(places.places)) - 1)
    seed = known.seed if known else secrets.randbits(64)
    hashes, fast = ([*known.index.hashes[:same]], [*known.fast[:same]]) if known else ([], [])
    for both in _hashes(path, _offsets(places.places)[same:], partial(_BothHashes, seed)):
        sha256, quick = both.split()
        hashes.append(sha256)
        fast.append(quick)
    return _RememberedIndex(FileRowIndex(path, name, _hash_of(hashes), hashes, places), seed, fast, own_format.package)


def _changed_error(name: str) -> InputsChangedError:
    fix = "run the recipe again when nothing writes to it any more"
    return InputsChangedError(name, "changed while its rows were read", fix)


def _offsets(places: Sequence[TextFilePosition]) -> list[int]:
    """Return where each hashed range begins: the first one with the file, also if blank lines are before its first row."""
    return [0, *(place.offset for place in places[1:])]


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

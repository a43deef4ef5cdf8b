"""Parts of files that are hashed while they are read: what is made of them can be kept under the hash of those very bytes."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from params import InputsChangedError
from tasks.progress import made_progress

END: Final = sys.maxsize
"""The offset of a file's end."""
_BLOCK_BYTES = 1 << 20


class HashedFile(io.RawIOBase):
    """The bytes of a file from the first of some offsets to the last one, as if they were a file.

    Args:
        path: of the file.
        offsets: two or more, ascending; the last one may be `END`.
    """

    def __init__(self, path: Path, offsets: Sequence[int]) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        self._position = self._file.seek(offsets[0])
        self._stops = offsets[1:]
        self._hash = hashlib.sha256()
        self.hashes: list[str] = []
        """Hash of the bytes from each offset to the next one, as far as they have been read."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what comes next; at most up to the last offset."""
        if len(self.hashes) == len(self._stops):
            return 0
        view = memoryview(buffer)[: self._stops[-1] - self._position]
        count = self._file.readinto(view) or 0
        view = view[:count]
        while view:
            own = view[: self._stops[len(self.hashes)] - self._position]
            self._hash.update(own)
            self._position += len(own)
            view = view[len(own) :]
            if self._position == self._stops[len(self.hashes)]:
                self._next_range()
        if not count:  # the file ends here
            self._next_range()
        return count

    def _next_range(self) -> None:
        self.hashes.append(self._hash.hexdigest())
        self._hash = hashlib.sha256()

    def read_rest(self) -> list[str]:
        """Read what has not been read, and return `hashes`."""
        block = bytearray(_BLOCK_BYTES)
        while self.readinto(block):
            made_progress()
        return self.hashes

    def check(self, name: str, sha256: str) -> None:
        """Compare what was read, and all that has not been read, with `hash_of` the ranges.

        Raises:
            InputsChangedError: the file has changed.
        """
        if hash_of(self.read_rest()) != sha256:
            what = "changed while its rows were read"
            raise InputsChangedError(name, what, "run the recipe again when nothing writes to it any more")

    def close(self) -> None:
        self._file.close()
        super().close()


def hash_of(hashes: Sequence[str]) -> str:
    """Return one hash for those of several ranges."""
    return hashlib.sha256(repr(list(hashes)).encode()).hexdigest()


class PartInMemory(io.RawIOBase):
    """A part of a file at its offset in the file, for pyarrow; there is nothing before and after it."""

    def __init__(self, content: bytes, offset: int) -> None:
        super().__init__()
        self._content = pa.py_buffer(content)
        self._offset = offset
        self._position = offset

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._offset + self._content.size}
        self._position = bases[whence] + offset
        return self._position

    def read_buffer(self, size: int) -> pa.Buffer:
        """Return the next bytes, without a copy."""
        start = self._position - self._offset
        if start < 0:
            return pa.py_buffer(b"")
        found = self._content.slice(min(start, self._content.size), size)
        self._position += found.size
        return found

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._offset + self._content.size - self._position)
        return bytes(self.read_buffer(left if size < 0 else size))

"""The large files (git-lfs) of one repository: content-addressed, verified before they become visible.

    <repo>.git/lfs/objects/ab/cd/abcd...    a whole object, named by its SHA-256 (the layout of git-lfs)
    <repo>.git/lfs/incoming/                uploads under way; nothing reads them, and a killed upload leaves only these

An object is written aside, compared with its announced size and SHA-256, flushed to the disk and then renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

from tasks.hub_server.refusals import RefusedError, repository_not_found

BLOCK_BYTES = 1 << 20
_STALE_AFTER_S = 24 * 3600
_SHA256 = re.compile(r"[0-9a-f]{64}")


class LargeFiles:
    """The large files under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, sha256: str) -> Path:
        """Where the object of that SHA-256 is, or would be.

        Raises:
            RefusedError: 400, when `sha256` is not 64 lower-case hexadecimal digits (and so could name any path).
        """
        if not _SHA256.fullmatch(sha256):
            raise RefusedError(400, "A large file is named by its SHA-256: 64 lower-case hexadecimal digits")
        return self._folder / "objects" / sha256[:2] / sha256[2:4] / sha256

    def size(self, sha256: str) -> int | None:
        """The size in bytes of a stored object; None when it is not stored."""
        try:
            return self.path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    async def receive(self, sha256: str, size: int, blocks: AsyncIterator[bytes]) -> None:
        """Store one object from a stream.

        Raises:
            RefusedError: 422, when the content is not what was announced.
        """
        with self._incoming() as (aside, file):
            digest, received = hashlib.sha256(), 0
            async for block in blocks:
                digest.update(block)
                file.write(block)
                received += len(block)
                if received > size:
                    break
            _require_announced(sha256, size, digest.hexdigest(), received)
            self._admit(aside, file, sha256)

    async def receive_part(self, sha256: str, number: int, size: int, blocks: AsyncIterator[bytes]) -> str:
        """Store one part of a multipart upload, of at most `size` bytes; returns its ETag.

        Raises:
            RefusedError: 422, when the part is larger.
        """
        with self._incoming() as (aside, file):
            digest, received = hashlib.sha256(), 0
            async for block in blocks:
                received += len(block)
                if received > size:
                    raise RefusedError(422, f"The part is larger than the {size} bytes that were announced")
                digest.update(block)
                file.write(block)
            _flush(file)
            aside.replace(self._part(sha256, number))
        return digest.hexdigest()

    def assemble(self, sha256: str, size: int, parts: int) -> None:
        """Join the parts 1 to `parts` of a multipart upload.

        Raises:
            RefusedError: 400 when a part is missing, 422 when the whole is not what was announced.
        """
        paths = [self._part(sha256, number) for number in range(1, parts + 1)]
        with self._incoming() as (aside, file):
            digest, received = hashlib.sha256(), 0
            for number, path in enumerate(paths, start=1):
                try:
                    part = path.open("rb")
                except FileNotFoundError:
                    raise RefusedError(400, f"Part {number} of {parts} has not been uploaded") from None
                with part:
                    while block := part.read(BLOCK_BYTES):
                        digest.update(block)
                        file.write(block)
                        received += len(block)
            _require_announced(sha256, size, digest.hexdigest(), received)
            self._admit(aside, file, sha256)
        for path in paths:
            path.unlink(missing_ok=True)

    def _part(self, sha256: str, number: int) -> Path:
        return self._folder / "incoming" / f"{self.path(sha256).name}.{number}"

    def _admit(self, aside: Path, file: BinaryIO, sha256: str) -> None:
        _flush(file)
        target = self.path(sha256)
        for folder in reversed(target.relative_to(self._folder).parents[:-1]):
            (self._folder / folder).mkdir(exist_ok=True)
        aside.replace(target)

    @contextlib.contextmanager
    def _incoming(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file to write into; whatever is not renamed away is removed.

        Raises:
            RefusedError: 404, when the repository was deleted meanwhile: its folder is not made again.
        """
        folder = self._folder / "incoming"
        try:
            self._folder.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise repository_not_found() from None
        self._remove_stale(folder)
        descriptor, name = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield Path(name), file
        finally:
            Path(name).unlink(missing_ok=True)

    @staticmethod
    def _remove_stale(folder: Path) -> None:
        oldest = time.time() - _STALE_AFTER_S
        for left in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another upload may just have renamed it
                if left.stat().st_mtime < oldest:
                    left.unlink()


def _require_announced(sha256: str, size: int, found: str, received: int) -> None:
    if received != size or found != sha256:
        raise RefusedError(422, f"The upload is not the announced file: {received} of {size} bytes, SHA-256 {found}")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())

"""The large files (git-lfs) of one repository: addressed by content, verified before they become visible.

    <repo>.git/lfs/objects/ab/cd/abcd...    a complete object, named by its SHA-256 (the layout of git-lfs)
    <repo>.git/lfs/incoming/                unfinished uploads, which nothing reads

An upload goes to a temporary file, is checked against its declared size and SHA-256, fsynced and then renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Set
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from tasks.hub_server.errors import HubError, repository_not_found_error

STALE_AFTER_S = 24 * 3600
"""An upload whose commit has not come after a day never comes."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


class LargeFileStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, sha256: str) -> Path:
        """Return the path of an object, whether or not it exists. HubError 400 for what is no SHA-256."""
        if not _SHA256.fullmatch(sha256):
            raise HubError(400, "The id of a large file is its SHA-256: 64 lower-case hexadecimal digits")
        return self._folder / "objects" / sha256[:2] / sha256[2:4] / sha256

    def size(self, sha256: str) -> int | None:
        """Return the size of an object in bytes; None if it is not stored."""
        try:
            return self.path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def renew(self, sha256: str, size: int) -> bool:
        """Return whether an object of this size is stored. If it is, `unused` leaves it out for another day."""
        if self.size(sha256) != size:
            return False
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path(sha256))
        return True

    def stored(self) -> list[Path]:
        """Return the objects; each file's name is its SHA-256."""
        return list(self._folder.glob("objects/*/*/*"))

    def unused(self, used: Set[str]) -> list[Path]:
        """Return what is a day old: objects without those in `used`, and unfinished uploads."""
        oldest = time.time() - STALE_AFTER_S
        objects = (path for path in self.stored() if path.name not in used)
        uploads = self._folder.glob("incoming/*")
        return [path for path in (*objects, *uploads) if path.stat().st_mtime < oldest]

    async def receive(
        self, sha256: str, size: int, blocks: AsyncIterator[bytes], *, before_storing: Callable[[], None] | None = None
    ) -> None:
        """Store an object from a stream. HubError 422 if it does not match `sha256` and `size`.

        `before_storing` is called once it has arrived as announced; what it raises keeps the object from being stored.
        A repository that was deleted in the meantime is not created again (404).
        """
        incoming = self._folder / "incoming"
        try:
            self._folder.mkdir(exist_ok=True)
            incoming.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise repository_not_found_error() from None
        with (incoming / secrets.token_hex(16)).open(
            "xb"
        ) as file:  # its mode follows the umask, unlike that of tempfile
            try:
                digest, received = hashlib.sha256(), 0
                async for block in blocks:
                    digest.update(block)
                    file.write(block)
                    received += len(block)
                    if received > size:
                        break
                if received != size or digest.hexdigest() != sha256:
                    what = f"{received} of {size} bytes, SHA-256 {digest.hexdigest()}"
                    raise HubError(422, f"The upload does not match its declared size and SHA-256: {what}")
                if before_storing:
                    await run_in_threadpool(before_storing)
                file.flush()
                os.fsync(file.fileno())
                target = self.path(sha256)
                for folder in reversed(target.relative_to(self._folder).parents[:-1]):
                    (self._folder / folder).mkdir(exist_ok=True)
                Path(file.name).replace(target)
            finally:
                Path(file.name).unlink(missing_ok=True)

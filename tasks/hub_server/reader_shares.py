"""How much those who cannot write to a repository may store in it, by proposals, comments and large files for proposals.

    <repo>.git/readers.json     user -> bytes that are stored for this user

A share grows only, until a writer merges a pull request of its user. Large files count when they have arrived.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from tasks.hub_server.errors import HubError

SHARE_BYTES = 16 << 20
_SMALLEST_BYTES = 4 << 10
"""What a commit or a comment counts at least: a block of the disk."""
_SHARES = TypeAdapter(dict[str, int])


@dataclass(frozen=True)
class ReaderShares:
    """The shares of one repository. Whatever changes them holds the repository's write lock."""

    repository_path: Path

    def require_room(self, user: str, size: int) -> None:
        """Raise HubError 413 if `size` more bytes are too many for a user who cannot write."""
        used = self._read().get(user, 0)
        if used + size > SHARE_BYTES:
            what = (
                f"Who cannot write to a repository can store {SHARE_BYTES} bytes in it, until a pull request is merged"
            )
            raise HubError(413, f"{what}: {user} has stored {used}, and {size} more are too many; ask for write access")

    def charge(self, user: str, size: int) -> None:
        """Count bytes that are stored for a user who cannot write. HubError 413 if they are too many."""
        counted = max(size, _SMALLEST_BYTES)
        self.require_room(user, counted)
        shares = self._read()
        self._write(shares | {user: shares.get(user, 0) + counted})

    def clear(self, user: str) -> None:
        """Begin a user's share again."""
        shares = self._read()
        if shares.pop(user, None) is not None:
            self._write(shares)

    @property
    def _path(self) -> Path:
        return self.repository_path / "readers.json"

    def _read(self) -> dict[str, int]:
        return _SHARES.validate_json(self._path.read_bytes()) if self._path.exists() else {}

    def _write(self, shares: dict[str, int]) -> None:
        temporary = self._path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(_SHARES.dump_json(shares))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

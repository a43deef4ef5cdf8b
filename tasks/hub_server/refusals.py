"""The one exception of the local Hub: a request that is answered with no.

The real client reads the status and `X-Error-Code` and raises its own typed error: `RepoNotFound` becomes
RepositoryNotFoundError, `RevisionNotFound` RevisionNotFoundError, `EntryNotFound` RemoteEntryNotFoundError.
"""

from __future__ import annotations

from typing import Literal

ErrorCode = Literal["RepoNotFound", "RevisionNotFound", "EntryNotFound"]


class RefusedError(Exception):
    """An HTTP status with a message for the user and, where the Hub has one, an error code."""

    def __init__(self, status: int, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.details: dict[str, str] = {}
        """Further keys of the JSON answer, such as the `url` that the client reads from a 409 of repos/create."""
        self.headers: dict[str, str] = {}
        """Further headers of the answer."""


def repository_not_found() -> RefusedError:
    """The answer for a repository that does not exist, and for one that the asker may not know of."""
    return RefusedError(404, "Repository not found", "RepoNotFound")

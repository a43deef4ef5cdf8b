"""HubError: the local Hub answers a request with an HTTP error.

The real client reads the status and `X-Error-Code` and raises its own typed error: `RepoNotFound` becomes
RepositoryNotFoundError, `RevisionNotFound` RevisionNotFoundError, `EntryNotFound` RemoteEntryNotFoundError.
"""

from __future__ import annotations


class HubError(Exception):
    """An HTTP status with a message for the user and, where the Hub has one, an error code."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.details: dict[str, str] = {}
        """More keys of the JSON answer, such as the `url` that the client reads from a 409 of repos/create."""
        self.headers: dict[str, str] = {}
        """More headers of the answer."""


def repository_not_found_error() -> HubError:
    """Return the 404 for a missing repository, and for a private one that the user cannot see."""
    return HubError(404, "Repository not found", "RepoNotFound")


def not_implemented_error(what: str) -> HubError:
    """Return the 501 for what a Hub can have and this one has not."""
    return HubError(501, f"The local Hub has no {what}")


def branch_moved_error() -> HubError:
    """Return the 412 for a commit whose parent is not the branch's head any more."""
    return HubError(412, "The branch was updated since you opened this page. Please refresh and try again.")

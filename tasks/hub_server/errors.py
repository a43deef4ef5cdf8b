"""HubError: the local Hub answers a request with an HTTP error.

The real client reads the status and `X-Error-Code` and raises its own typed error: `RepoNotFound` becomes
RepositoryNotFoundError, `RevisionNotFound` RevisionNotFoundError, `EntryNotFound` RemoteEntryNotFoundError.
"""

from __future__ import annotations

import os
from pathlib import Path


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


def no_permission_error(root: Path, error: OSError) -> HubError:
    """Return the 403 for a file of the Hub that the operating system does not let this process use."""
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else root
    shown = path.relative_to(root) if path.is_relative_to(root) else path.name
    what = f"The operating system does not let the user of this Hub's process use {str(shown)!r} in its folder"
    fix = (
        "its owner shares the folder with a group by: chgrp -R <group> <folder>; chmod -R g+rwX,g+s <folder>; umask 002"
    )
    return HubError(403, f"{what} ({error.strerror}): {fix}")


def branch_moved_error() -> HubError:
    """Return the 412 for a commit whose parent is not the branch's head any more."""
    return HubError(412, "The branch was updated since you opened this page. Please refresh and try again.")

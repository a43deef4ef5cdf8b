"""Types of a repository's content: files, commits, and the changes of a commit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A file or a folder at one commit."""

    path: str
    oid: str
    """SHA-1 in git; for a large file that of its git-lfs pointer."""
    size: int
    """Size of the content in bytes; 0 for a folder."""
    is_folder: bool = False
    sha256: str | None = None
    """SHA-256 of a large file's content; None for other files."""
    pointer_size: int = 0


@dataclass(frozen=True)
class CommitRecord:
    """One commit of a repository's history."""

    sha: str
    title: str
    message: str
    author: str
    time: int
    """Seconds since 1970, UTC."""


@dataclass(frozen=True)
class PutFile:
    """Write a file whose content is part of the commit request."""

    path: str
    content: bytes


@dataclass(frozen=True)
class PutLargeFile:
    """Write a large file, whose content was uploaded before."""

    path: str
    sha256: str
    size: int | None


@dataclass(frozen=True)
class DeleteFile:
    """Delete a file, or everything in a folder; an error if neither exists."""

    path: str


@dataclass(frozen=True)
class DeleteFolder:
    """Delete everything in a folder; an error if it does not exist."""

    path: str


Change = PutFile | PutLargeFile | DeleteFile | DeleteFolder

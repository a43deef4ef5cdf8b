"""What a repository of the local Hub is asked for and gives back: files, commits, and the changes of a commit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A file or a folder at one commit."""

    path: str
    oid: str
    """git's SHA-1; for a large file that of its pointer."""
    size: int
    """Bytes of the content; 0 for a folder."""
    is_folder: bool = False
    sha256: str | None = None
    """Set for a large file."""
    pointer_size: int = 0


@dataclass(frozen=True)
class CommitRecord:
    """One commit as the Hub's history shows it."""

    sha: str
    title: str
    message: str
    author: str
    time: int
    """Seconds since 1970, UTC."""


@dataclass(frozen=True)
class PutFile:
    """Write a file whose content travels in the commit."""

    path: str
    content: bytes


@dataclass(frozen=True)
class PutLargeFile:
    """Write a file whose content was uploaded before."""

    path: str
    sha256: str
    size: int | None


@dataclass(frozen=True)
class DeleteFile:
    """Remove a file; it is an error when there is none."""

    path: str


@dataclass(frozen=True)
class DeleteFolder:
    """Remove everything under a folder."""

    path: str


Change = PutFile | PutLargeFile | DeleteFile | DeleteFolder

"""The objects of git behind a repository of the local Hub: files and commits, read and written through dulwich."""

from __future__ import annotations

import stat
import time

from dulwich.index import commit_tree
from dulwich.lfs import LFSPointer
from dulwich.objects import Blob, Commit, ObjectID, Tag
from dulwich.repo import Repo

from tasks.hub_server.records import CommitRecord, Entry

_FILE_MODE = stat.S_IFREG | 0o644
_POINTER_BYTES = 200
"""A git-lfs pointer is never longer; a larger blob is content."""


def read_entry(git: Repo, path: str, mode: int, oid: ObjectID) -> Entry:
    """A file or folder; a file that is exactly a git-lfs pointer is the large file that it points to."""
    if stat.S_ISDIR(mode):
        return Entry(path, oid.decode(), 0, is_folder=True)
    content = git.object_store.get_raw(oid)[1]
    if len(content) <= _POINTER_BYTES:
        pointer = LFSPointer.from_bytes(content)
        # dulwich reads pointers leniently; one that is not written exactly so is a file like any other.
        if pointer is not None and pointer.is_valid_oid() and pointer.to_bytes() == content:
            return Entry(path, oid.decode(), pointer.size, sha256=pointer.oid, pointer_size=len(content))
    return Entry(path, oid.decode(), len(content))


def read_commit(git: Repo, sha: str) -> Commit:
    """The commit of a full id."""
    commit = git.object_store[ObjectID(sha.encode())]
    assert isinstance(commit, Commit), sha
    return commit


def peel(git: Repo, sha: ObjectID) -> ObjectID:
    """The commit behind an annotated tag, which only git itself makes."""
    while isinstance(found := git.object_store[sha], Tag):
        sha = found.object[1]
    return sha


def record_of(commit: Commit) -> CommitRecord:
    """A commit as the history shows it."""
    title, _, message = commit.message.decode().rstrip("\n").partition("\n\n")
    author = commit.author.decode().partition(" <")[0]
    return CommitRecord(commit.id.decode(), title, message, author, commit.commit_time)


def add_blob(git: Repo, content: bytes) -> ObjectID:
    """Write the content of a file."""
    blob = Blob.from_string(content)
    git.object_store.add_object(blob)
    return blob.id


def write_commit(git: Repo, files: dict[str, ObjectID], parents: list[ObjectID], message: str, user: str) -> ObjectID:
    """Write a commit and its trees; no branch points to it yet."""
    commit = Commit()
    commit.tree = commit_tree(git.object_store, [(path.encode(), oid, _FILE_MODE) for path, oid in files.items()])
    commit.parents = parents
    commit.author = commit.committer = f"{user} <{user}@localhost>".encode()
    commit.author_time = commit.commit_time = int(time.time())
    commit.author_timezone = commit.commit_timezone = 0
    commit.encoding = b"UTF-8"
    commit.message = f"{message}\n".encode()
    git.object_store.add_object(commit)
    return commit.id

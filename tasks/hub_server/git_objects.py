"""Read and write files and commits in git, through dulwich."""

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
"""A git-lfs pointer is never longer than this."""


def tree_entry(git: Repo, path: str, mode: int, oid: ObjectID) -> Entry:
    """Return a file or folder; for a git-lfs pointer, the large file that it points to."""
    if stat.S_ISDIR(mode):
        return Entry(path, oid.decode(), 0, is_folder=True)
    content = git.object_store.get_raw(oid)[1]
    if len(content) <= _POINTER_BYTES:
        pointer = LFSPointer.from_bytes(content)
        # dulwich is lenient: only a blob in the exact format is a pointer, any other is an ordinary file.
        if pointer is not None and pointer.is_valid_oid() and pointer.to_bytes() == content:
            return Entry(path, oid.decode(), pointer.size, sha256=pointer.oid, pointer_size=len(content))
    return Entry(path, oid.decode(), len(content))


def read_commit(git: Repo, sha: str) -> Commit:
    """Return the commit with this full id."""
    commit = git.object_store[ObjectID(sha.encode())]
    assert isinstance(commit, Commit), sha
    return commit


def peel(git: Repo, sha: ObjectID) -> ObjectID:
    """Resolve an annotated tag to its commit. The Hub makes no such tags, but git can."""
    while isinstance(found := git.object_store[sha], Tag):
        sha = found.object[1]
    return sha


def commit_record(commit: Commit) -> CommitRecord:
    """Return a commit as a record of the history."""
    title, _, message = commit.message.decode().rstrip("\n").partition("\n\n")
    author = commit.author.decode().partition(" <")[0]
    return CommitRecord(commit.id.decode(), title, message, author, commit.commit_time)


def add_blob(git: Repo, content: bytes) -> ObjectID:
    """Write a blob and return its id."""
    blob = Blob.from_string(content)
    git.object_store.add_object(blob)
    return blob.id


def write_commit(git: Repo, files: dict[str, ObjectID], parents: list[ObjectID], message: str, user: str) -> ObjectID:
    """Write a commit and its trees, and return its id. No branch points to it yet."""
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

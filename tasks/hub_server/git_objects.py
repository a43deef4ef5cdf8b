"""Files, commits and the changes of a commit; read from git and written to it through dulwich."""

from __future__ import annotations

import re
import stat
import time
import zlib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from dulwich.index import commit_tree
from dulwich.lfs import LFSPointer
from dulwich.objects import Blob, Commit, ObjectID, Tag
from dulwich.repo import Repo

FILE_MODE = stat.S_IFREG | 0o644
_POINTER_BYTES = 200
"""A git-lfs pointer is never longer than this."""
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,17})\n"
)
_START_BYTES = 1024


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


def tree_entry(git: Repo, path: str, mode: int, oid: ObjectID) -> Entry:
    """Return a file or folder; for a git-lfs pointer, the large file that it points to."""
    if stat.S_ISDIR(mode):
        return Entry(path, oid.decode(), 0, is_folder=True)
    size, start = _size_and_start(git, oid)
    pointer = parse_pointer(start) if size <= _POINTER_BYTES else None
    if pointer is None:
        return Entry(path, oid.decode(), size)
    return Entry(path, oid.decode(), pointer.size, sha256=pointer.oid, pointer_size=size)


def parse_pointer(content: bytes) -> LFSPointer | None:
    """Return a git-lfs pointer. dulwich is lenient: only the exact format is a pointer, any other is an ordinary file."""
    match = _POINTER.fullmatch(content)
    return LFSPointer(match[1].decode(), int(match[2])) if match else None


def large_file_places(git: Repo) -> dict[str, tuple[str, str]]:
    """Return for the SHA-256 of every large file in the history a path, and a branch, tag or pull request that leads to it."""
    places: dict[str, tuple[str, str]] = {}
    seen: list[ObjectID] = []
    for ref, sha in sorted(git.refs.as_dict().items()):  # branches come first
        if ref.startswith(b"refs/"):
            for entry in git.get_walker(include=[peel(git, sha)], exclude=seen):
                for path, mode, oid in walk_tree(git, entry.commit.tree):
                    file = tree_entry(git, path.decode(errors="replace"), mode, oid)
                    if file.sha256:
                        places.setdefault(file.sha256, (file.path, ref.decode(errors="replace")))
            seen.append(peel(git, sha))
    return places


def _size_and_start(git: Repo, oid: ObjectID) -> tuple[int, bytes]:
    """Return the size of a blob and its first bytes. The rest is not decompressed, unless git has packed the blob."""
    digits = oid.decode()
    try:
        with Path(git.controldir(), "objects", digits[:2], digits[2:]).open("rb") as file:
            start = zlib.decompressobj().decompress(file.read(_START_BYTES), _START_BYTES)
    except FileNotFoundError:
        content = git.object_store.get_raw(oid)[1]
        return len(content), content[:_START_BYTES]
    header, _, content = start.partition(b"\0")  # b"blob 123"
    return int(header.split()[1]), content


def read_commit(git: Repo, sha: str) -> Commit:
    """Return the commit with this full id."""
    commit = git.object_store[ObjectID(sha.encode())]
    assert isinstance(commit, Commit), sha
    return commit


def read_files(git: Repo, sha: ObjectID) -> dict[str, ObjectID]:
    """Return path -> blob of every file at a commit."""
    tree = read_commit(git, sha.decode()).tree
    return {path.decode(errors="surrogateescape"): oid for path, _, oid in walk_tree(git, tree)}


def walk_tree(git: Repo, tree: ObjectID, *, folders: bool = False) -> Iterator[tuple[bytes, int, ObjectID]]:
    """Yield path, mode and id of every file, and of every folder if asked for, in git's order."""
    for item in git.object_store.iter_tree_contents(tree, include_trees=folders):
        if item.path:  # the folder itself has none
            assert item.mode is not None
            assert item.sha is not None
            yield item.path, item.mode, item.sha


def peel(git: Repo, sha: ObjectID) -> ObjectID:
    """Resolve an annotated tag to its commit. The Hub makes no such tags, but git can."""
    while isinstance(found := git.object_store[sha], Tag):
        sha = found.object[1]
    return sha


def commit_record(commit: Commit) -> CommitRecord:
    """Return a commit as a record of the history."""
    title, _, message = commit.message.decode(errors="replace").rstrip("\n").partition("\n\n")
    author = commit.author.decode(errors="replace").partition(" <")[0]
    return CommitRecord(commit.id.decode(), " ".join(title.split()), message, author, commit.commit_time)


def commit_message(title: str, description: str) -> str:
    """Return the message that `commit_record` takes apart. A title is one line: the next ones would pass for the description."""
    title = " ".join(title.split())
    return f"{title}\n\n{description}" if description else title


def add_blob(git: Repo, content: bytes) -> ObjectID:
    """Write a blob and return its id."""
    blob = Blob.from_string(content)
    git.object_store.add_object(blob)
    return blob.id


def write_commit(git: Repo, files: dict[str, ObjectID], parents: list[ObjectID], message: str, user: str) -> ObjectID:
    """Write a commit and its trees, and return its id. No branch points to it yet."""
    commit = Commit()
    commit.tree = commit_tree(
        git.object_store, [(path.encode(errors="surrogateescape"), oid, FILE_MODE) for path, oid in files.items()]
    )
    commit.parents = parents
    commit.author = commit.committer = f"{user} <{user}@localhost>".encode()
    commit.author_time = commit.commit_time = int(time.time())
    commit.author_timezone = commit.commit_timezone = 0
    commit.encoding = b"UTF-8"
    commit.message = f"{message}\n".encode()
    git.object_store.add_object(commit)
    return commit.id


def last_changes(git: Repo, sha: str, paths: Set[str]) -> dict[str, CommitRecord]:
    """Return for each file or folder among `paths` the newest commit that changed it, looking back from `sha`.

    Of a merge commit, only what its first parent does not have counts.
    """
    found: dict[str, CommitRecord] = {}
    commit: Commit | None = read_commit(git, sha)
    here = _oids(git, commit, paths)
    while commit and len(found) < len(paths):
        parent = read_commit(git, commit.parents[0].decode()) if commit.parents else None
        before = _oids(git, parent, paths)
        for path in paths - found.keys():
            if here.get(path) != before.get(path):
                found[path] = commit_record(commit)
        commit, here = parent, before
    return found


def _oids(git: Repo, commit: Commit | None, paths: Set[str]) -> dict[str, ObjectID]:
    """Return the ids of the files and folders among `paths`."""
    items = walk_tree(git, commit.tree, folders=True) if commit else ()
    return {name: oid for path, _, oid in items if (name := path.decode(errors="replace")) in paths}

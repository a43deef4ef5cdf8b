"""Files, commits and the changes of a commit; read from git and written to it through dulwich."""

from __future__ import annotations

import base64
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from dulwich.index import commit_tree
from dulwich.lfs import LFSPointer
from dulwich.objects import Blob, Commit, ObjectID, Tag
from dulwich.repo import Repo
from pydantic import BaseModel, Field

from tasks.hub_server.errors import HubError

FILE_MODE = stat.S_IFREG | 0o644
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,17})\n"
)


@dataclass(frozen=True)
class TreeEntry:
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
    sha: str
    title: str
    message: str
    author: str
    time: int
    """Seconds since 1970, UTC."""


class PutFile(BaseModel):
    """Write a file whose content is part of the commit request."""

    key: Literal["file"] = "file"
    path: str
    content: str
    encoding: str = ""
    """`base64`, or empty for text."""

    @property
    def data(self) -> bytes:
        """The content in bytes. HubError 400 if it is not base64."""
        try:
            is_base64 = self.encoding == "base64"
            return base64.b64decode(self.content, validate=True) if is_base64 else self.content.encode()
        except ValueError as error:
            raise HubError(400, f"{self.path!r} is not base64: {error}") from None


class PutLargeFile(BaseModel):
    """Write a large file, whose content was uploaded before."""

    key: Literal["lfsFile"] = "lfsFile"
    path: str
    oid: Sha256
    size: int | None = Field(default=None, ge=0, lt=10**18)
    """None in copies: that of the stored file."""


class DeletePath(BaseModel):
    """Delete a file, or everything in a folder; an error if neither exists. As `deletedFolder`, a folder only."""

    key: Literal["deletedFile", "deletedFolder"] = "deletedFile"
    path: str


Change = PutFile | PutLargeFile | DeletePath


def read_tree_entry(git: Repo, path: str, mode: int, oid: ObjectID) -> TreeEntry:
    """Return a file or folder; for a git-lfs pointer, the large file that it points to."""
    if stat.S_ISDIR(mode):
        return TreeEntry(path, oid.decode(), 0, is_folder=True)
    content = git.object_store.get_raw(oid)[1]
    pointer = parse_lfs_pointer(content)
    if pointer is None:
        return TreeEntry(path, oid.decode(), len(content))
    return TreeEntry(path, oid.decode(), pointer.size, sha256=pointer.oid, pointer_size=len(content))


def parse_lfs_pointer(content: bytes) -> LFSPointer | None:
    """Return a git-lfs pointer. dulwich is lenient: only the exact format is a pointer, any other is an ordinary file."""
    match = _POINTER.fullmatch(content)
    return LFSPointer(match[1].decode(), int(match[2])) if match else None


def find_large_files_in_history(git: Repo) -> dict[str, tuple[str, str]]:
    """Return for the SHA-256 of every large file in the history a path, and a branch, tag or pull request that leads to it."""
    places: dict[str, tuple[str, str]] = {}
    seen: list[ObjectID] = []
    known: set[ObjectID] = set()
    for ref, sha in sorted(git.refs.as_dict().items()):  # branches come first
        if ref.startswith(b"refs/"):
            for entry in git.get_walker(include=[peel_tag(git, sha)], exclude=seen):
                for path, _, oid in walk_tree(git, entry.commit.tree):
                    if oid not in known and (pointer := parse_lfs_pointer(git.object_store.get_raw(oid)[1])):
                        places.setdefault(pointer.oid, (path.decode(errors="replace"), ref.decode(errors="replace")))
                    known.add(oid)
            seen.append(peel_tag(git, sha))
    return places


def read_commit(git: Repo, sha: str) -> Commit:
    commit = git.object_store[ObjectID(sha.encode())]
    assert isinstance(commit, Commit), sha
    return commit


def list_file_blobs(git: Repo, sha: ObjectID) -> dict[str, ObjectID]:
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


def peel_tag(git: Repo, sha: ObjectID) -> ObjectID:
    """Resolve an annotated tag to its commit. The Hub makes no such tags, but git can."""
    while isinstance(found := git.object_store[sha], Tag):
        sha = found.object[1]
    return sha


def to_commit_record(commit: Commit) -> CommitRecord:
    title, _, message = commit.message.decode(errors="replace").rstrip("\n").partition("\n\n")
    author = commit.author.decode(errors="replace").partition(" <")[0]
    return CommitRecord(commit.id.decode(), " ".join(title.split()), message, author, commit.commit_time)


def commit_message(title: str, description: str) -> str:
    """Return the message that `to_commit_record` takes apart. A title is one line: the next ones would pass for the description."""
    title = " ".join(title.split())
    return f"{title}\n\n{description}" if description else title


def add_blob(git: Repo, content: bytes) -> ObjectID:
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


def find_last_commit(git: Repo, sha: str, path: str) -> CommitRecord | None:
    """Return the newest commit that changed a file or folder, looking back from `sha`."""
    walker = git.get_walker(include=[ObjectID(sha.encode())], paths=[path.encode()], max_entries=1)
    return next((to_commit_record(entry.commit) for entry in walker), None)

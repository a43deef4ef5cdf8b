"""What a pull request changes: its commits and files since its base, and how they are merged into main.

A merge is by file: a file that main has changed since the base, too, is a conflict, unless both have the same content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dulwich.objects import Commit, ObjectID
from dulwich.repo import Repo

from tasks.hub_server.git_objects import (
    FILE_MODE,
    CommitRecord,
    Entry,
    commit_record,
    read_commit,
    read_files,
    tree_entry,
)
from tasks.hub_server.names import file_above


@dataclass(frozen=True)
class FileChange:
    """A file that is added, changed or removed."""

    path: str
    before: Entry | None
    after: Entry | None

    @property
    def kind(self) -> str:
        """`added`, `changed` or `removed`."""
        return "removed" if self.after is None else "changed" if self.before else "added"


@dataclass(frozen=True)
class Changes:
    """What a branch changes since its base."""

    head: str
    commits: list[CommitRecord]
    """Oldest first."""
    files: list[FileChange]
    conflicts: list[str]
    """Files that cannot be merged into main."""


def first_parent_commits(git: Repo, head: ObjectID, until: str | None = None) -> Iterator[Commit]:
    """Yield the commits from `head` back, by their first parents, without `until` and what is before it."""
    sha: ObjectID | None = head
    while sha is not None and sha.decode() != until:
        commit = read_commit(git, sha.decode())
        yield commit
        sha = commit.parents[0] if commit.parents else None


def branch_changes(git: Repo, base: str, head: ObjectID, main: ObjectID) -> Changes:
    """Return what a branch changes."""
    commits = [commit_record(commit) for commit in first_parent_commits(git, head, until=base)]
    before, after = read_files(git, ObjectID(base.encode())), read_files(git, head)
    files = [
        FileChange(_shown(path), *(_entry(git, path, found.get(path)) for found in (before, after)))
        for path in _changed(before, after)
    ]
    return Changes(head.decode(), commits[::-1], files, merge_files(git, base, head, main)[1])


def merge_files(git: Repo, base: str, head: ObjectID, main: ObjectID) -> tuple[dict[str, ObjectID], list[str]]:
    """Return the files of main with the changes of a branch, and those that are in conflict."""
    before, after, merged = read_files(git, ObjectID(base.encode())), read_files(git, head), read_files(git, main)
    conflicts = []
    for path in _changed(before, after):
        if merged.get(path) not in (before.get(path), after.get(path)):
            conflicts.append(path)
        elif path in after:
            merged[path] = after[path]
        else:
            merged.pop(path, None)
    names = merged.keys()
    conflicts += [path for path in merged if file_above(path, names) and path not in conflicts]
    return merged, [_shown(path) for path in sorted(conflicts)]


def _changed(before: dict[str, ObjectID], after: dict[str, ObjectID]) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _entry(git: Repo, path: str, oid: ObjectID | None) -> Entry | None:
    return None if oid is None else tree_entry(git, _shown(path), FILE_MODE, oid)


def _shown(path: str) -> str:
    """Return a path for people: what is not UTF-8 in git is replaced."""
    return path.encode(errors="surrogateescape").decode(errors="replace")

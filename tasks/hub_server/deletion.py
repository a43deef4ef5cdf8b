"""Delete large files for good: their content and, if asked for, the pointers to them in the whole history.

The new commits are the same whenever they are written. So if the process is killed, another attempt goes on from there:
pull requests name the new commits first, then branches and tags lead to them, and the content is deleted last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from dataclasses import dataclass

from dulwich.index import commit_tree
from dulwich.objects import Commit, ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from tasks.hub_server.git_objects import peel, tree_entry, walk_tree
from tasks.hub_server.pull_requests import PullRequests
from tasks.hub_server.repositories import MAIN, Repository


@dataclass(frozen=True)
class StoredFile:
    """A large file of a repository."""

    sha256: str
    size: int
    time: float
    """When it was uploaded, in seconds since 1970."""
    path: str
    """A path where a commit has it; empty if none has."""
    ref: str | None
    """The branch, tag or pull request that leads to this commit."""


def list_large_files(repository: Repository) -> list[StoredFile]:
    """Return the large files that are stored, by path."""
    with repository.open() as git:
        places: dict[str, tuple[str, str | None]] = {}
        for ref, path, sha256 in _pointers(git):
            places.setdefault(sha256, (path, ref))
    found = []
    for file in repository.large_files.stored():
        place = places.get(file.name, ("", None))
        with contextlib.suppress(FileNotFoundError):  # it was deleted in the meantime
            status = file.stat()
            found.append(StoredFile(file.name, status.st_size, status.st_mtime, *place))
    return sorted(found, key=lambda file: (file.path, file.time))


def delete_large_files(repository: Repository, unwanted: Set[str], *, rewrite_history: bool) -> None:
    """Delete the large files with these SHA-256.

    With `rewrite_history`, no commit points to them afterwards: those that did, and all that follow, have other ids. Without
    it, commits keep their ids, and downloads of these files fail.
    """
    with repository.writing() as git:
        if rewrite_history:
            renamed = _rewrite(git, unwanted)
            PullRequests(repository).rename_commits(git, renamed)
            for ref, sha in _refs(git).items():
                if new := renamed.get(peel(git, sha)):
                    git.refs.set_if_equals(ref, sha, new)
        for sha256 in unwanted:
            repository.large_files.path(sha256).unlink(missing_ok=True)


def _refs(git: Repo) -> dict[Ref, ObjectID]:
    """Return the branches, tags and pull requests, main first."""
    refs = {ref: sha for ref, sha in git.refs.as_dict().items() if ref.startswith(b"refs/")}
    return dict(sorted(refs.items(), key=lambda item: (item[0] != f"refs/heads/{MAIN}".encode(), item[0])))


def _pointers(git: Repo) -> Iterator[tuple[str, str, str]]:
    """Yield ref, path and SHA-256 of every large file of every commit."""
    seen: list[ObjectID] = []
    for ref, sha in _refs(git).items():
        head = peel(git, sha)
        for entry in git.get_walker(include=[head], exclude=seen):
            for path, mode, oid in walk_tree(git, entry.commit.tree):
                file = tree_entry(git, path.decode(errors="replace"), mode, oid)
                if file.sha256:
                    yield ref.decode(errors="replace"), file.path, file.sha256
        seen.append(head)


def _rewrite(git: Repo, unwanted: Set[str]) -> dict[ObjectID, ObjectID]:
    """Write new commits without pointers to `unwanted`, and return old -> new id of those that change."""
    renamed: dict[ObjectID, ObjectID] = {}
    is_unwanted: dict[ObjectID, bool] = {}
    heads = [peel(git, sha) for sha in _refs(git).values()]
    for entry in git.get_walker(include=heads, order="topo", reverse=True):
        commit = entry.commit
        kept, leaves_out = [], False
        for path, mode, oid in walk_tree(git, commit.tree):
            if oid not in is_unwanted:
                is_unwanted[oid] = tree_entry(git, "", mode, oid).sha256 in unwanted
            if is_unwanted[oid]:
                leaves_out = True
            else:
                kept.append((path, oid, mode))
        parents = [renamed.get(parent, parent) for parent in commit.parents]
        if leaves_out or parents != commit.parents:
            new = commit.copy()
            assert isinstance(new, Commit)
            new.parents = parents
            new.gpgsig = None  # it signed the old commit
            if leaves_out:
                new.tree = commit_tree(git.object_store, kept)
            git.object_store.add_object(new)
            renamed[commit.id] = new.id
    return renamed

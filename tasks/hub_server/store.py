"""All repositories of the local Hub, by name: found, made and deleted, each by one rename.

    <root>/models/<namespace>/<name>.git      real git: `git log`, `git fsck` and `git clone` work on them
    <root>/datasets/<namespace>/<name>.git

Names that begin with a dot are not repositories: those under way to become one, and those on the way out.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.hub_server.names import is_valid_name, is_valid_namespace
from tasks.hub_server.refusals import RefusedError, repository_not_found
from tasks.hub_server.repositories import Repository

KINDS = ("models", "datasets")
_UNDER_WAY, _DELETED = ".new-", ".deleted-"
_STALE_AFTER_S = 24 * 3600


class Store:
    """All repositories under one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, kind: str, namespace: str, name: str) -> Repository:
        """The repository of that name.

        Raises:
            RefusedError: 404 RepoNotFound.
        """
        path = self._path(kind, namespace, name)
        if path is None or not self.holds(kind, namespace, name):
            raise repository_not_found()
        return Repository(path)

    def holds(self, kind: str, namespace: str, name: str) -> bool:
        """Whether there is a repository of that name."""
        path = self._path(kind, namespace, name)
        return path is not None and (path / "HEAD").is_file()

    def create(self, kind: str, namespace: str, name: str, *, private: bool, user: str) -> None:
        """Make a repository with one commit on main; it becomes visible whole, by one rename.

        Raises:
            RefusedError: 400 for a name that the Hub would not take, 409 when there is one of that name.
        """
        path = self._path(kind, namespace, name)
        if path is None:
            raise RefusedError(400, f"Not a repository that can be made here: {kind}/{namespace}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=_UNDER_WAY))
        try:
            Repository.initialize(aside, private=private, user=user)
            aside.rename(path)
        except OSError:
            if not path.exists():
                raise
            raise RefusedError(409, f"You already created this repo: {namespace}/{name}") from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove a repository; it becomes invisible whole, by one rename.

        Raises:
            RefusedError: 404 RepoNotFound.
        """
        repository = self.open(kind, namespace, name)
        aside = Path(tempfile.mkdtemp(dir=repository.path.parent, prefix=_DELETED))
        try:
            repository.move(aside / "repository.git")
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed processes have left: repositories on their way out, or for a day on their way in."""
        oldest = time.time() - _STALE_AFTER_S
        for kind in KINDS:
            for left in (self._root / kind).glob(f"*/{_DELETED}*"):
                shutil.rmtree(left, ignore_errors=True)
            for left in (self._root / kind).glob(f"*/{_UNDER_WAY}*"):
                with contextlib.suppress(FileNotFoundError):  # it may just have become a repository
                    if left.stat().st_mtime < oldest:
                        shutil.rmtree(left, ignore_errors=True)

    def list(self, kind: str) -> Iterator[tuple[str, str, Repository]]:
        """Namespace, name and repository of all of that kind, in order of name.

        Raises:
            RefusedError: 404 for an unknown kind.
        """
        if kind not in KINDS:
            raise RefusedError(404, f"The local Hub keeps no {kind}")
        for path in sorted((self._root / kind).glob("[!.]*/[!.]*.git")):
            yield path.parent.name, path.name.removesuffix(".git"), Repository(path)

    def _path(self, kind: str, namespace: str, name: str) -> Path | None:
        if kind not in KINDS or not is_valid_namespace(namespace) or not is_valid_name(name):
            return None
        return self._root / kind / namespace / f"{name}.git"

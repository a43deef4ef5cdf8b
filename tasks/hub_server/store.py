"""All repositories of the local Hub. Creating and deleting one is a single rename.

    <root>/models/<namespace>/<name>.git      ordinary bare git repositories: `git log`, `git fsck`, `git clone` work
    <root>/datasets/<namespace>/<name>.git

Folders whose name begins with a dot are repositories that are being created or deleted.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.hub_server.errors import HubError, no_permission_error, not_implemented_error, repository_not_found_error
from tasks.hub_server.large_files import STALE_AFTER_S
from tasks.hub_server.names import is_valid_namespace, is_valid_repository_name
from tasks.hub_server.repositories import BareRepository

KINDS = ("models", "datasets")
_NEW, _DELETED = ".new-", ".deleted-"


class RepositoryStore:
    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, kind: str, namespace: str, name: str) -> BareRepository:
        """Return the repository of this name. HubError 404 RepoNotFound without one."""
        path = self._path(kind, namespace, name)
        if path is None or not self.exists(kind, namespace, name):
            raise repository_not_found_error()
        return BareRepository(path)

    def exists(self, kind: str, namespace: str, name: str) -> bool:
        """Whether there is a repository of this name. HubError 403 if this process may not look."""
        path = self._path(kind, namespace, name)
        try:
            return path is not None and (path / "HEAD").is_file()
        except PermissionError as error:
            raise no_permission_error(self.root, error) from None

    def create(self, kind: str, namespace: str, name: str, *, private: bool, user: str) -> None:
        """Create a repository with one commit on main. HubError 400 for an invalid name, 409 if it exists already."""
        path = self._path(kind, namespace, name)
        if path is None:
            raise HubError(400, f"Invalid repository name: {kind}/{namespace}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = _make_folder(path.parent, _NEW)
        try:
            BareRepository.initialize(new, private=private, user=user)
            new.rename(path)
        except OSError:
            if not path.exists():
                raise
            raise HubError(409, f"You already created this repo: {namespace}/{name}") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete a repository. HubError 404 RepoNotFound without one."""
        repository = self.open(kind, namespace, name)
        trash = _make_folder(repository.path.parent, _DELETED)
        try:
            repository.move(trash / "repository.git")
        finally:
            shutil.rmtree(trash, ignore_errors=True)

    def move(self, kind: str, namespace: str, name: str, new_namespace: str, new_name: str) -> None:
        """Rename a repository. HubError 404 without one, 400 for an invalid new name, 409 if it is taken."""
        repository, path = self.open(kind, namespace, name), self._path(kind, new_namespace, new_name)
        if path is None:
            raise HubError(400, f"Invalid repository name: {kind}/{new_namespace}/{new_name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            repository.move(path)
        except OSError:
            if not path.exists():
                raise
            what = f"A {kind[:-1]} repository called {new_namespace}/{new_name} already exists"
            raise HubError(409, what) from None

    def remove_leftovers(self) -> None:
        """Delete what killed processes left: deleted repositories, and new ones that are a day old."""
        oldest = time.time() - STALE_AFTER_S
        for kind in KINDS:
            folder = self.root / kind
            for leftover in (*folder.glob(f"*/{_DELETED}*"), *folder.glob(f"*/{_NEW}*")):
                with contextlib.suppress(FileNotFoundError):  # another process may just have renamed it
                    if leftover.name.startswith(_DELETED) or leftover.stat().st_mtime < oldest:
                        shutil.rmtree(leftover, ignore_errors=True)

    def prune(self, *, remove: bool) -> int:
        """Return the bytes of what no branch, tag or pull request leads to; with `remove`, delete it."""
        freed = 0
        for kind in KINDS:
            for _, _, repository in self.list(kind):
                with contextlib.suppress(HubError):  # another process has deleted the repository
                    freed += repository.prune(remove=remove)
        return freed

    def list(self, kind: str) -> Iterator[tuple[str, str, BareRepository]]:
        """Yield namespace, name and repository of all repositories of a kind, by name. HubError 501 for an unknown kind."""
        if kind not in KINDS:
            raise not_implemented_error(kind)
        for path in sorted((self.root / kind).glob("[!.]*/[!.]*.git")):
            yield path.parent.name, path.name.removesuffix(".git"), BareRepository(path)

    def _path(self, kind: str, namespace: str, name: str) -> Path | None:
        if kind not in KINDS or not is_valid_namespace(namespace) or not is_valid_repository_name(name):
            return None
        return self.root / kind / namespace / f"{name}.git"


def _make_folder(parent: Path, prefix: str) -> Path:
    """Create a folder with a name of its own. Its mode follows the umask, so that a group can share the Hub; mkdtemp's does not."""
    folder = parent / f"{prefix}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder

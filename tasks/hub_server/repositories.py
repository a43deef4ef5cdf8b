"""One repository of the local Hub: a bare git repository, read and written through dulwich.

A commit writes its objects first and moves the branch last, so a killed process leaves only unreachable objects. Writers,
also those in other processes, exclude each other by a file lock, under which the parent is compared before the branch moves.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dulwich.errors import NotGitRepository, NotTreeError
from dulwich.gc import prune_unreachable_objects
from dulwich.lfs import LFSPointer
from dulwich.object_store import tree_lookup_path
from dulwich.objects import Commit, ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from tasks.hub_server import git_objects
from tasks.hub_server.errors import HubError, branch_moved_error, repository_not_found_error
from tasks.hub_server.large_files import STALE_AFTER_S, LargeFileStore
from tasks.hub_server.names import COMMIT_ID, RefKind, file_above, is_valid_ref, normalize_repo_path, to_full_ref
from tasks.hub_server.reader_shares import ReaderShares

MAIN = "main"

_WEIGHTS = {".bin", ".ckpt", ".gguf", ".h5", ".model", ".onnx", ".pt", ".pth", ".safetensors", ".tflite"}
_TABLES = {".arrow", ".msgpack", ".npy", ".npz", ".parquet", ".pickle", ".pkl"}
_ARCHIVES = {".7z", ".gz", ".tar", ".xz", ".zip", ".zst"}
LARGE_SUFFIXES = frozenset(_WEIGHTS | _TABLES | _ARCHIVES)
"""Files with these suffixes are always large files, as on the Hub; a new repository's `.gitattributes` lists them."""


@dataclass(frozen=True)
class BareRepository:
    """One bare git repository. Every call opens and closes it; no file stays open in between."""

    path: Path

    @classmethod
    def initialize(cls, path: Path, *, private: bool, user: str) -> BareRepository:
        """Create a repository in an empty folder, with `.gitattributes` on main."""
        Repo.init_bare(path, default_branch=MAIN.encode()).close()
        repository = cls(path)
        repository.set_private(private)
        attributes = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in sorted(LARGE_SUFFIXES))
        with repository.open() as git:
            files = {".gitattributes": git_objects.add_blob(git, attributes.encode())}
            sha = git_objects.write_commit(git, files, [], "initial commit", user)
            git.refs.set_if_equals(to_full_ref("heads", MAIN), None, sha)
        return repository

    @property
    def private(self) -> bool:
        """Whether only users who can write to it can see it."""
        with self.open() as git:
            return git.get_config().get_boolean((b"hub",), b"private", default=False)

    def set_private(self, private: bool) -> None:  # noqa: FBT001
        with self.writing() as git:
            config = git.get_config()
            config.set((b"hub",), b"private", private)
            config.write_to_path()

    @property
    def large_files(self) -> LargeFileStore:
        return LargeFileStore(self.path / "lfs")

    @property
    def reader_shares(self) -> ReaderShares:
        return ReaderShares(self.path)

    def refs(self, kind: RefKind) -> dict[str, str]:
        """Return name -> commit id of all branches (`heads`) or tags."""
        with self.open() as git:
            found = git.refs.as_dict(Ref(f"refs/{kind}".encode()))
            return {
                name.decode(errors="replace"): git_objects.peel_tag(git, sha).decode()
                for name, sha in sorted(found.items())
            }

    def resolve(self, revision: str) -> str:
        """Return the commit id of a branch, a tag, a full ref or a commit id (7 to 40 digits). HubError 404 without one."""
        with self.open() as git:
            short = () if revision.startswith("refs/") else (f"refs/heads/{revision}", f"refs/tags/{revision}")
            for candidate in (*short, revision):
                name = Ref(candidate.encode())
                if candidate.startswith("refs/") and is_valid_ref(name) and name in git.refs:
                    return git_objects.peel_tag(git, git.refs[name]).decode()
            if COMMIT_ID.fullmatch(revision):
                for found in git.object_store.iter_prefix(revision.encode()):
                    if isinstance(git.object_store[found], Commit):
                        return found.decode()
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def history(self, sha: str, *, limit: int | None = None) -> list[git_objects.CommitRecord]:
        """Return the commits, or up to `limit`, newest first, beginning at `sha`."""
        with self.open() as git:
            walker = git.get_walker(include=[ObjectID(sha.encode())], max_entries=limit)
            return [git_objects.to_commit_record(entry.commit) for entry in walker]

    def entries(self, sha: str, folder: str = "", *, recursive: bool) -> list[git_objects.TreeEntry]:
        """Return the files and folders in `folder` at a commit, in git's order. HubError 404 if `folder` does not exist."""
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        with self.open() as git:
            tree = git_objects.read_commit(git, sha).tree
            found = [
                git_objects.read_tree_entry(git, path.decode(errors="replace"), mode, oid)
                for path, mode, oid in git_objects.walk_tree(git, tree, folders=True)
                if path.startswith(prefix.encode()) and (recursive or b"/" not in path[len(prefix) :])
            ]
        if prefix and not found:
            raise HubError(404, f"{folder} does not exist at {sha}", "EntryNotFound")
        return found

    def entry(self, sha: str, path: str) -> git_objects.TreeEntry:
        """Return the file at a path in a commit. HubError 404 if there is none."""
        missing = HubError(404, f"{path} does not exist at {sha}", "EntryNotFound")
        with self.open() as git:
            try:
                mode, oid = tree_lookup_path(
                    git.object_store.__getitem__, git_objects.read_commit(git, sha).tree, path.encode()
                )
            except (KeyError, ValueError, NotTreeError):
                raise missing from None
            if stat.S_ISDIR(mode):
                raise missing
            return git_objects.read_tree_entry(git, path, mode, oid)

    def read(self, entry: git_objects.TreeEntry) -> bytes:
        """Return the content of a file that is not a large file."""
        with self.open() as git:
            return git.object_store.get_raw(ObjectID(entry.oid.encode()))[1]

    def commit(
        self, git: Repo, ref: Ref, changes: Sequence[git_objects.Change], *, message: str, parent: str | None, user: str
    ) -> str:
        """Add a commit to a branch, inside `writing`, and return its id.

        HubError 412 if `parent` is given and is not the branch's head; 404 if the branch or a file to delete does not
        exist; 400 for an invalid path or a large file that was not uploaded.
        """
        if ref not in git.refs:
            raise HubError(404, f"Invalid rev id: {ref.decode().removeprefix('refs/heads/')}", "RevisionNotFound")
        head = git.refs[ref]
        if parent and not head.decode().startswith(parent.lower()):
            raise branch_moved_error()
        sha = self.add_commit(git, head, changes, message=message, user=user)
        if not git.refs.set_if_equals(ref, head, sha):
            raise branch_moved_error()
        return sha.decode()

    def add_commit(
        self, git: Repo, parent: ObjectID, changes: Sequence[git_objects.Change], *, message: str, user: str
    ) -> ObjectID:
        """Write a commit on top of `parent`, inside `writing`, and return its id. No ref leads to it yet."""
        files = git_objects.list_file_blobs(git, parent)
        for change in changes:
            self._apply(git, files, change)
        for path in files:
            if above := file_above(path, files.keys()):
                raise HubError(400, f"{above!r} cannot be both a file and the folder of {path!r}")
        return git_objects.write_commit(git, files, [parent], message, user)

    def squash(self, branch: str, *, message: str, user: str) -> None:
        """Give a branch a history of one commit with its files. HubError 404 if it does not exist."""
        with self.writing() as git:
            ref = to_full_ref("heads", branch)
            if ref not in git.refs:
                raise HubError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            head = git.refs[ref]
            git.refs.set_if_equals(
                ref, head, git_objects.write_commit(git, git_objects.list_file_blobs(git, head), [], message, user)
            )

    def create_ref(self, kind: RefKind, name: str, sha: str) -> None:
        """Create a branch or a tag. HubError 409 if it exists already, 400 for an invalid name."""
        with self.writing() as git:
            ref = to_full_ref(kind, name)
            if ref in git.refs:
                raise HubError(409, f"Reference refs/{kind}/{name} already exists")
            try:
                git.refs.set_if_equals(ref, None, ObjectID(sha.encode()))
            except OSError:  # refs/tags/a is a file where refs/tags/a/b needs a folder, or the other way round
                raise HubError(409, f"{name} conflicts with the name of another branch or tag") from None

    def delete_ref(self, kind: RefKind, name: str) -> None:
        """Delete a branch or a tag. HubError 404 if it does not exist, 403 for main."""
        with self.writing() as git:
            ref = to_full_ref(kind, name)
            if kind == "heads" and name == MAIN:
                raise HubError(403, f"Cannot delete refs/heads/{MAIN}")
            if ref not in git.refs:
                raise HubError(404, f"Invalid rev id: {name}", "RevisionNotFound")
            git.refs.remove_if_equals(ref, None)

    def prune(self, *, remove: bool) -> int:
        """Return the bytes of what is a day old and no branch, tag or pull request leads to; with `remove`, delete it."""
        with self.writing() as git:
            _, freed = prune_unreachable_objects(
                git.object_store, git.refs, grace_period=STALE_AFTER_S, dry_run=not remove
            )
            for path in self.large_files.unused(git_objects.find_large_files_in_history(git).keys()):
                with contextlib.suppress(FileNotFoundError):
                    freed += path.stat().st_size
                    if remove:
                        path.unlink()
            return freed

    def move(self, target: Path) -> None:
        """Rename the repository's folder, after waiting for other writers. HubError 404 if one of them has deleted it."""
        with self._write_lock():
            try:
                self.path.rename(target)
            except FileNotFoundError:
                raise repository_not_found_error() from None

    @contextlib.contextmanager
    def open(self) -> Iterator[Repo]:
        """Open the repository. If it is deleted while it is open, this raises 404, whatever was read or failed inside."""
        try:
            with Repo(str(self.path), bare=True) as git:
                git.object_store.fsync_object_files = True
                yield git
        except NotGitRepository:
            raise repository_not_found_error() from None
        finally:
            if not (self.path / "HEAD").is_file():
                raise repository_not_found_error() from None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Repo]:
        """Open the repository under the write lock; the block must not lock it again."""
        with self._write_lock(), self.open() as git:
            yield git

    @contextlib.contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Hold the file lock that excludes other writers, also those in other processes.

        The holder writes a mark into the lock file and removes it at the end. A mark that is still there means that a
        writer was killed: the `<file>.lock` files that dulwich may have left are deleted, since nobody owns them.
        """
        path = self.path / "hub.lock"
        try:
            lock = path.open("a+")
        except FileNotFoundError:
            raise repository_not_found_error() from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            is_same_file = False
            with contextlib.suppress(FileNotFoundError):
                is_same_file = os.path.samestat(path.stat(), os.fstat(lock.fileno()))
            if not is_same_file:
                raise repository_not_found_error()
            if os.fstat(lock.fileno()).st_size:
                (self.path / "config.lock").unlink(missing_ok=True)
                for folder in ("objects", "refs"):
                    for leftover in (self.path / folder).rglob("*.lock"):
                        leftover.unlink()
            lock.write("writing")
            lock.flush()
            try:
                yield
            finally:
                lock.truncate(0)

    def _apply(self, git: Repo, files: dict[str, ObjectID], change: git_objects.Change) -> None:
        path = normalize_repo_path(change.path)
        if isinstance(change, git_objects.DeletePath):
            _delete(files, path, change.key)
            return
        if isinstance(change, git_objects.PutLargeFile):
            size = self.large_files.size(change.oid) if change.size is None else change.size
            content = LFSPointer(change.oid, size or 0).to_bytes()
        else:
            content = change.data
        pointer = git_objects.parse_lfs_pointer(content)
        if pointer and self.large_files.size(pointer.oid) != pointer.size:
            raise HubError(400, f"The large file {path} was not uploaded: {pointer.size} bytes, {pointer.oid}")
        files[path] = git_objects.add_blob(git, content)


def _delete(files: dict[str, ObjectID], path: str, key: str) -> None:
    """Remove a file, or the files of a folder, from those of a commit; `key` is what the request calls it."""
    if key == "deletedFile" and path in files:
        del files[path]
        return
    inside = [file for file in files if file.startswith(f"{path}/")]
    if not inside:
        what = "file" if key == "deletedFile" else "folder"
        raise HubError(404, f"A {what} with this name doesn't exist: {path}", "EntryNotFound")
    for file in inside:
        del files[file]

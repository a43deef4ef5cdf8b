"""One repository of the local Hub: a bare git repository in a folder, read and written through dulwich.

A commit writes its objects first and moves the branch last, so a process killed in between leaves nothing but
unreachable objects. Writers of one repository, in any number of processes, take turns by a kernel lock, under which
the parent is compared before the branch moves. Nothing here knows HTTP, apart from the status of a `RefusedError`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dulwich.errors import NotGitRepository, NotTreeError
from dulwich.lfs import LFSPointer
from dulwich.object_store import tree_lookup_path
from dulwich.objects import Blob, Commit, ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from tasks.hub_server.git_objects import add_blob, peel, read_commit, read_entry, record_of, write_commit
from tasks.hub_server.large_files import LargeFiles
from tasks.hub_server.names import COMMIT_ID, RefKind, checked_path, is_storable, reference, refuse_file_as_folder
from tasks.hub_server.records import Change, CommitRecord, DeleteFile, DeleteFolder, Entry, PutFile, PutLargeFile
from tasks.hub_server.refusals import RefusedError, repository_not_found

MAIN = "main"

_WEIGHTS = {".bin", ".ckpt", ".gguf", ".h5", ".model", ".onnx", ".pt", ".pth", ".safetensors", ".tflite"}
_TABLES = {".arrow", ".msgpack", ".npy", ".npz", ".parquet", ".pickle", ".pkl"}
_ARCHIVES = {".7z", ".gz", ".tar", ".xz", ".zip", ".zst"}
LARGE_SUFFIXES = frozenset(_WEIGHTS | _TABLES | _ARCHIVES)
"""Large files whatever their size, as on the Hub; `.gitattributes` of a new repository says so to git-lfs."""

T = TypeVar("T")


@dataclass(frozen=True)
class Repository:
    """One bare git repository. It holds no open file: every call opens, reads or writes, and closes."""

    path: Path

    @classmethod
    def initialize(cls, path: Path, *, private: bool, user: str) -> Repository:
        """Make a repository in an empty folder, with `.gitattributes` on main."""
        with Repo.init_bare(path, default_branch=MAIN.encode()) as git:
            config = git.get_config()
            config.set((b"hub",), b"private", private)
            config.write_to_path()
        attributes = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in sorted(LARGE_SUFFIXES))
        repository = cls(path)
        with repository._open() as git:
            blob = Blob.from_string(attributes.encode())
            git.object_store.add_object(blob)
            sha = write_commit(git, {".gitattributes": blob.id}, [], "initial commit", user)
            git.refs.set_if_equals(reference("heads", MAIN), None, sha)
        return repository

    @property
    def private(self) -> bool:
        """Whether only those who may write it may know of it."""
        with self._open() as git:
            return git.get_config().get_boolean((b"hub",), b"private", default=False)

    @property
    def large_files(self) -> LargeFiles:
        """The large files of this repository."""
        return LargeFiles(self.path / "lfs")

    def refs(self, kind: RefKind) -> dict[str, str]:
        """Name and commit of all branches (`heads`) or tags."""
        with self._open() as git:
            found = git.refs.as_dict(Ref(f"refs/{kind}".encode()))
            return {name.decode(): peel(git, sha).decode() for name, sha in sorted(found.items())}

    def resolve(self, revision: str) -> str:
        """The commit that a branch, a tag, a full ref or a commit id (7 to 40 digits) stands for.

        Raises:
            RefusedError: 404 RevisionNotFound.
        """
        with self._open() as git:
            for candidate in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
                name = Ref(candidate.encode())
                if candidate.startswith("refs/") and is_storable(name) and name in git.refs:
                    return peel(git, git.refs[name]).decode()
            if COMMIT_ID.fullmatch(revision):
                for found in git.object_store.iter_prefix(revision.encode()):
                    if isinstance(git.object_store[found], Commit):
                        return found.decode()
        raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def history(self, sha: str, *, skip: int, limit: int) -> list[CommitRecord]:
        """Up to `limit` commits from `sha` backwards, after the first `skip`."""
        with self._open() as git:
            walker = git.get_walker(include=[ObjectID(sha.encode())], max_entries=skip + limit)
            return [record_of(entry.commit) for entry in list(walker)[skip:]]

    def entries(self, sha: str, folder: str = "", *, recursive: bool) -> list[Entry]:
        """The files and folders at a commit, under `folder`, in git's order.

        Raises:
            RefusedError: 404 EntryNotFound, when `folder` names nothing.
        """
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        with self._open() as git:
            tree = read_commit(git, sha).tree
            found = [
                read_entry(git, item.path.decode(), item.mode, item.sha)
                for item in git.object_store.iter_tree_contents(tree, include_trees=True)
                if item.path and item.path.startswith(prefix.encode()) and item.mode is not None and item.sha
                if recursive or b"/" not in item.path[len(prefix) :]
            ]
        if prefix and not found:
            raise RefusedError(404, f"{folder} does not exist at {sha}", "EntryNotFound")
        return found

    def entry(self, sha: str, path: str) -> Entry:
        """The file of that path at a commit.

        Raises:
            RefusedError: 404 EntryNotFound.
        """
        missing = RefusedError(404, f"{path} does not exist at {sha}", "EntryNotFound")
        with self._open() as git:
            try:
                mode, oid = tree_lookup_path(git.object_store.__getitem__, read_commit(git, sha).tree, path.encode())
            except (KeyError, ValueError, NotTreeError):
                raise missing from None
            if stat.S_ISDIR(mode):
                raise missing
            return read_entry(git, path, mode, oid)

    def read(self, entry: Entry) -> bytes:
        """The content of a file that is not a large one."""
        with self._open() as git:
            return git.object_store.get_raw(ObjectID(entry.oid.encode()))[1]

    def commit(
        self,
        branch: str,
        changes: Sequence[Change],
        *,
        title: str,
        description: str,
        parent: str | None,
        user: str,
    ) -> str:
        """Put one commit on a branch and return its id.

        Raises:
            RefusedError: 412 when `parent` is given and is no longer the head; 404 for a branch or a file to delete that
                is not there; 400 for a path outside the repository or a large file that was not uploaded.
        """

        def write(git: Repo) -> str:
            ref = reference("heads", branch)
            if ref not in git.refs:
                raise RefusedError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            head = git.refs[ref]
            if parent and not head.decode().startswith(parent.lower()):
                raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
            files = {
                item.path.decode(): item.sha
                for item in git.object_store.iter_tree_contents(read_commit(git, head.decode()).tree)
                if item.path is not None and item.sha is not None
            }
            for change in changes:
                self._apply(git, files, change)
            refuse_file_as_folder(files)
            message = f"{title}\n\n{description}" if description else title
            sha = write_commit(git, files, [head], message, user)
            if not git.refs.set_if_equals(ref, head, sha):
                raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
            return sha.decode()

        return self._write(write)

    def create_ref(self, kind: RefKind, name: str, sha: str) -> None:
        """Make a branch or a tag.

        Raises:
            RefusedError: 409 when there is one of that name, 400 for a name that git does not take.
        """

        def write(git: Repo) -> None:
            ref = reference(kind, name)
            if ref in git.refs:
                raise RefusedError(409, f"Reference already exists: {name}")
            try:
                git.refs.set_if_equals(ref, None, ObjectID(sha.encode()))
            except OSError:  # refs/tags/a is a file where refs/tags/a/b needs a folder, or the other way round
                raise RefusedError(409, f"Another reference stands in the way of {name}") from None

        self._write(write)

    def delete_ref(self, kind: RefKind, name: str) -> None:
        """Remove a branch or a tag.

        Raises:
            RefusedError: 404 when there is none, 403 for main.
        """

        def write(git: Repo) -> None:
            ref = reference(kind, name)
            if kind == "heads" and name == MAIN:
                raise RefusedError(403, f"The branch {MAIN} cannot be deleted")
            if ref not in git.refs:
                raise RefusedError(404, f"Reference does not exist: {name}", "RevisionNotFound")
            git.refs.remove_if_equals(ref, None)

        self._write(write)

    def move(self, target: Path) -> None:
        """Put the whole repository elsewhere on the same disk, when nobody writes it.

        Raises:
            RefusedError: 404, when another process has just done so.
        """
        with self._turn():
            self.path.rename(target)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Repo]:
        try:
            git = Repo(str(self.path), bare=True)
        except NotGitRepository:  # it was deleted since it was found
            raise repository_not_found() from None
        with git:
            git.object_store.fsync_object_files = True
            yield git

    def _write(self, write: Callable[[Repo], T]) -> T:
        """Run `write` on a freshly opened repository, alone among all processes."""
        with self._turn(), self._open() as git:
            return write(git)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Be the only one who writes.

        dulwich writes a file as `<file>.lock` and renames it. Where the writer before us was killed, its mark is still
        in the lock file, and such files may stand in the way: we hold the kernel lock, so nobody owns them.

        Raises:
            RefusedError: 404, when the repository was deleted while we waited.
        """
        path = self.path / "hub.lock"
        try:
            lock = path.open("a+")
        except FileNotFoundError:
            raise repository_not_found() from None
        with lock:
            is_ours = False
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                is_ours = os.path.samestat(path.stat(), os.fstat(lock.fileno()))
            if not is_ours:
                raise repository_not_found()
            if os.fstat(lock.fileno()).st_size:
                for folder in ("objects", "refs"):
                    for left in (self.path / folder).rglob("*.lock"):
                        left.unlink()
            lock.write("writing")
            lock.flush()
            try:
                yield
            finally:
                lock.truncate(0)

    def _apply(self, git: Repo, files: dict[str, ObjectID], change: Change) -> None:
        path = checked_path(change.path)
        match change:
            case PutFile(content=content):
                files[path] = add_blob(git, content)
            case PutLargeFile(sha256=sha256, size=size):
                stored = self.large_files.size(sha256)
                if stored is None or size not in (None, stored):
                    raise RefusedError(400, f"The large file {path} was not uploaded: no {sha256} of {size} bytes")
                files[path] = add_blob(git, LFSPointer(sha256, stored).to_bytes())
            case DeleteFile():
                if files.pop(path, None) is None:
                    raise RefusedError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
            case DeleteFolder():
                for inside in [file for file in files if file.startswith(f"{path}/")]:
                    del files[inside]

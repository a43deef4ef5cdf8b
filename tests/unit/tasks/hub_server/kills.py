"""Kill an operation of the local Hub before each of its writes in turn, and check what remains. A command-line program.

    python -m tests.unit.tasks.hub_server.kills <operation> <empty folder> <stride>

For each call into C that can write to the disk (open, write, flush, close, truncate, fsync, mkdir, rename, unlink, lock,
...), a child process starts the operation on a fresh copy of the same repositories and is killed by SIGKILL just before
that call. What remains must be the state before or after, never one in between, except for
those that take several steps. The operation is then repeated, as by a client
that got no answer, and must lead to the state after. Prints the number of kills and how often the killed operation had
already landed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tasks.hub_server.errors import HubError
from tasks.hub_server.git_objects import Change, DeletePath, PutFile, PutLargeFile
from tasks.hub_server.names import to_full_ref
from tasks.hub_server.pull_requests import PullRequests
from tasks.hub_server.repositories import BareRepository
from tasks.hub_server.store import RepositoryStore

WRITES = frozenset([
    "open", "write", "writelines", "flush", "close", "__exit__", "truncate", "ftruncate", "fsync", "fdatasync",
    "mkdir", "rmdir", "rename", "replace", "unlink", "remove", "link", "symlink", "utime", "chmod", "flock",
    "lockf", "sendfile", "copy_file_range", "mkstemp",
])  # fmt: skip
WEIGHTS = random.Random(0).randbytes(3 << 20)
ROWS = b"leaked"
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
State = dict[str, object]


def opened(root: Path) -> BareRepository:
    return RepositoryStore(root).open("models", "alice", "model")


def head(repository: BareRepository) -> str:
    return repository.resolve("main")


def create(root: Path) -> None:
    RepositoryStore(root).create("models", "alice", "new", private=True, user="alice")


async def blocks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 1 << 20):
        yield content[start : start + (1 << 20)]


def text(path: str, content: str) -> PutFile:
    return PutFile(path=path, content=content)


def put(repository: BareRepository, *changes: Change, parent: str | None = None) -> None:
    with repository.writing() as git:
        repository.commit(git, to_full_ref("heads", "main"), changes, message="first", parent=parent, user="alice")


def commit(root: Path) -> None:
    """Commit a large file, two other files and a deletion on top of the client's last known commit."""
    repository = opened(root)
    known = (root / "known").read_text()
    if repository.large_files.size(SHA256) is None:
        asyncio.run(repository.large_files.receive(SHA256, len(WEIGHTS), blocks(WEIGHTS)))
    large = PutLargeFile(path="m.safetensors", oid=SHA256, size=len(WEIGHTS))
    put(repository, text("a/b.txt", "new"), large, text("d/e/f.txt", "f"), DeletePath(path="old.txt"), parent=known)


def tag(root: Path) -> None:
    opened(root).create_ref("tags", "v2/final", head(opened(root)))


def untag(root: Path) -> None:
    opened(root).delete_ref("tags", "v1/final")


def delete(root: Path) -> None:
    RepositoryStore(root).delete("models", "alice", "model")


def pull_requests(root: Path) -> PullRequests:
    return PullRequests(opened(root), "alice", can_write=True)


def propose(root: Path) -> None:
    """Make a pull request, as a client that looks first whether it is there."""
    if "proposal" not in [found.title for found in pull_requests(root).all()]:
        changes = [text("p.txt", "p"), DeletePath(path="old.txt")]
        pull_requests(root).create(changes, title="proposal", description="d", parent=None, size=1)


def extend(root: Path) -> None:
    """Add a commit to the pull request on top of the client's last known commit."""
    known = (root / "known-proposal").read_text()
    changes = [text("q.txt", "q")]
    pull_requests(root).commit(1, changes, message="m", parent=known, size=1)


def merge(root: Path) -> None:
    pull_requests(root).merge(1, comment="good")


def close(root: Path) -> None:
    pull_requests(root).set_status(1, "closed", comment="bad")


def hide(root: Path) -> None:
    opened(root).set_private(True)


def rename(root: Path) -> None:
    RepositoryStore(root).move("models", "alice", "model", "team", "other")


OPERATIONS: dict[str, Callable[[Path], None]] = {
    found.__name__: found
    for found in (
        *(create, commit, tag, untag, delete, propose, extend, merge, close),
        *(hide, rename),
    )
}
LANDED = {create: 409, commit: 412, tag: 409, untag: 404, delete: 404}
LANDED |= {propose: None, extend: 412, merge: 409, close: 409, hide: None, rename: 404}
"""The HTTP status of a repetition after the first attempt had landed."""


def prepare(root: Path) -> None:
    store = RepositoryStore(root)
    store.create("models", "alice", "model", private=False, user="alice")
    repository = opened(root)
    large = PutLargeFile(path="rows.bin", oid=hashlib.sha256(ROWS).hexdigest(), size=len(ROWS))
    asyncio.run(repository.large_files.receive(large.oid, len(ROWS), blocks(ROWS)))
    put(repository, text("a/b.txt", "old"), text("old.txt", "old"), large)
    repository.create_ref("tags", "v1/final", head(repository))
    (root / "known").write_text(head(repository))
    changes = [text("ready.txt", "r")]
    _, known = pull_requests(root).create(changes, title="ready", description="", parent=None, size=1)
    (root / "known-proposal").write_text(known)


def state(root: Path) -> State:
    """Everything that a client can see, except commit ids, which depend on the time."""
    found: State = {}
    for namespace, name, repository in RepositoryStore(root).list("models"):
        seen: State = {"private": repository.private}
        for kind in ("heads", "tags"):
            for ref, sha in repository.refs(kind).items():
                files = {}
                for entry in repository.entries(sha, recursive=True):
                    if entry.sha256:
                        content = repository.large_files.path(entry.sha256)
                        files[entry.path] = hashlib.sha256(content.read_bytes()).digest()
                    elif not entry.is_folder:
                        files[entry.path] = repository.read(entry)
                seen[ref] = ([record.title for record in repository.history(sha, limit=99)], files)
        seen["pull requests"] = [
            (request.title, request.status, [(event.type, event.text) for event in request.history(changes.commits)])
            for listed in PullRequests(repository).all()
            for request, changes in [PullRequests(repository).read(listed.number)]
        ]
        found[f"{namespace}/{name}"] = seen
    return found


def run_until(operation: Callable[[Path], None], root: Path, fatal: int) -> bool:
    """Run an operation in a child process that is killed before write number `fatal`. Return whether it was killed."""
    child = os.fork()
    if child == 0:
        step = 0

        def before(_frame: object, event: str, function: object) -> None:
            nonlocal step
            if event == "c_call" and getattr(function, "__name__", "") in WRITES:
                step += 1
                if step == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(before)
        operation(root)
        sys.setprofile(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"the operation failed, with status {status}"
    return os.WIFSIGNALED(status)


def repeat(operation: Callable[[Path], None], root: Path) -> int | None:
    """Run an operation. Return the HTTP status of its error; None if it succeeds."""
    try:
        operation(root)
    except HubError as error:
        return error.status
    return None


def main(name: str, root: Path, stride: int) -> None:
    operation, base = OPERATIONS[name], root / "base"
    prepare(base)
    before = state(base)
    shutil.copytree(base, root / "after")
    operation(root / "after")
    after = state(root / "after")
    assert before != after

    fatal, landed = 1, 0
    while True:
        copy = shutil.copytree(base, root / "copy")
        if not run_until(operation, copy, fatal):
            break
        left = state(copy)
        assert left in (before, after), f"killed before write {fatal}: {left}"
        landed += left == after
        assert repeat(operation, copy) == (LANDED[operation] if left == after else None), f"before write {fatal}"
        assert state(copy) == after, f"killed before write {fatal}: the repetition did not land"
        RepositoryStore(copy).remove_leftovers()
        for repository in (copy / "models").glob("*/*.git"):
            done = subprocess.run(
                ["git", "-C", repository, "fsck", "--full", "--strict", "--no-dangling"], capture_output=True
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), f"before write {fatal}: {done}"
        shutil.rmtree(copy)
        fatal += stride
    print(fatal - stride, landed)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

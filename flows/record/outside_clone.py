"""Where a run that records itself keeps what no branch has yet: a worker deletes the clone seconds after the run.

If DVC's cache is outside of the project, as in prefect.yaml's `default-anywhere`, it is a folder in that cache, which the next run
on the same machine finds. DVC knows nothing of it and deletes nothing there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from flows.dvc_project.remote import read_cache_folder
from flows.record.git_branch import RemoteGitBranch
from flows.record.recording import RecordTarget
from params import StorageError
from params.foundation.artifacts import KEPT_FOLDER, Artifacts


@contextlib.contextmanager
def keep_outside_of_clone(artifacts: Artifacts, to: RecordTarget | None) -> Iterator[None]:
    """In the block, `Artifacts.kept` of this process and of those that it starts outlives the clone, if DVC's cache does.

    A StorageError says before any stage that nothing can be kept there.
    """
    cache = read_cache_folder() if to else None
    if to is None or cache is None or cache.is_relative_to(Path.cwd()):
        yield
        return
    branch = to.git_branch(artifacts)
    # Several projects and branches may have their caches in one place.
    folder = _folder_in(cache, repository_of_address(branch.address()), branch)
    earlier = _folder_in(cache, re.sub(r"(?<=://)[^/@]*@", "", branch.address()), branch)
    try:
        if earlier.is_dir() and not folder.exists():  # of a version that took the address as it is written
            earlier.rename(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        fix = "free space there, let this worker's user write there, or set DVC's cache.dir to another folder"
        raise StorageError(str(folder), f"cannot be written: {error.strerror}", fix) from error
    os.environ[KEPT_FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[KEPT_FOLDER]


def repository_of_address(address: str) -> str:
    """Return what all addresses of a repository have in common: its owner and name, or the whole path of one on this machine.

    The host is left out: a repository is the same by ssh and https, on a mirror, and after its server has got another name.
    """
    path, is_here = address, "://" not in address
    if found := re.fullmatch(r"(\w[\w+.-]*)://([^/]*)(/.*)?", address):
        path, is_here = found[3] or "", found[1] == "file"
    elif found := re.fullmatch(r"(?:[^/:@]+@)?[^/:]+:(.*)", address):  # as ssh writes it: user@host:path
        path, is_here = found[1], False
    path = posixpath.normpath(unquote(path)).removesuffix("/.git").removesuffix(".git")
    return os.path.realpath(path) if is_here else "/".join(path.strip("/").split("/")[-2:])


def _folder_in(cache: Path, repository: str, branch: RemoteGitBranch) -> Path:
    project = repository, branch.folder, branch.name
    return cache / "evergreen" / hashlib.sha256("\0".join(project).encode()).hexdigest()[:16]

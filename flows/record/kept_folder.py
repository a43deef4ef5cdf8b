"""Where a run that records itself keeps what no branch has yet: a worker deletes the clone seconds after the run.

If DVC's cache is outside of the project, as in prefect.yaml's `default-anywhere`, it is a folder in that cache, which the next run
on the same machine finds. DVC knows nothing of it and deletes nothing there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flows.dvc_project.remote import read_cache_folder
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
    # The address without a password, which changes; several projects and branches may have their caches in one place.
    project = re.sub(r"(?<=://)[^/@]*@", "", branch.address()), branch.folder, branch.name
    folder = cache / "evergreen" / hashlib.sha256("\0".join(project).encode()).hexdigest()[:16]
    try:
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

"""Locks that processes hold while they live: what is named in an error is done by one process at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from params.foundation.artifacts import translate_disk_errors
from params.foundation.errors import TransientError


@contextlib.contextmanager
def hold_file_lock(path: Path, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock on the file `path`; the kernel frees it when this process ends, however it ends.

    The file holds the owner's process id and is never deleted. If another process holds the lock after `wait_s`, the
    TransientError says that `what` is already running; a StorageError, that the disk is full or read-only.
    """
    from filelock import FileLock, Timeout

    def write_owner(file: int) -> None:
        with contextlib.suppress(OSError):  # a full disk stops no lock
            os.truncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)

    lock = FileLock(path, timeout=wait_s, fallback_to_soft=False, on_acquired=write_owner)
    try:
        with translate_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except Timeout:
        owner = path.read_text(encoding="utf-8").strip() or "unknown"  # one of this moment may not have written it yet
        what = f"{what} is already running in process {owner}"
        raise TransientError(str(path), what, "wait until it ends, or stop it") from None
    try:
        yield
    finally:
        lock.release()

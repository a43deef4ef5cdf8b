"""Process hygiene: no stage outlives the process that started it, and no two write to one place."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from params import TransientError

SUPERVISOR = "EVERGREEN_SUPERVISOR"
"""Environment variable: the process that supervises a training, for the processes below its launcher."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(how: signal.Signals = signal.SIGKILL, *, ancestor: int | None = None) -> None:
    """Ask the kernel to send `how` to this process when its parent ends, however it ends (Linux; elsewhere nothing).

    A killed `dvc` would otherwise leave its command running, and the next one would start a second beside it.

    Args:
        how: the signal.
        ancestor: a process that must be above this one; a parent that ended before this call shows by its absence.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    is_orphan = ancestor is not None and ancestor not in (process.pid for process in psutil.Process().parents())
    if is_orphan or os.getppid() != parent:
        os._exit(os.EX_TEMPFAIL)


@contextlib.contextmanager
def exclusive(path: Path, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a kernel lock on `path`; the lock goes with the process, however it ends.

    Args:
        path: the file that stands for what is locked.
        what: what would otherwise run twice.
        wait_s: how long to wait for one that holds it and is about to end.

    Raises:
        TransientError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + wait_s
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < give_up:
                    time.sleep(0.05)
                    continue
                fix = "wait for it, or end it"
                raise TransientError(str(path), f"{what} is already running in process {_holder(path)}", fix) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _holder(path: Path) -> str:
    """The process that holds the lock; it may have got it a moment ago, and not yet have written its name."""
    for _ in range(20):
        if holder := path.read_text(encoding="utf-8").strip():
            return holder
        time.sleep(0.05)
    return "unknown"

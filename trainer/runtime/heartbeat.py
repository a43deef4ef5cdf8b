"""What each process of a training reports: that it is alive, its step and phase, and the error that ends it.

A process keeps one small file, `rank-<n>`, in its run's folder. The file is filled with blanks when it is made, so that
an error can still be written when the disk is full. On SIGUSR1 the process writes the stacks of its threads to `stack-<n>`.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from params.foundation.errors import EvergreenError, error_from_json

_SIZE = 16 * 1024
LOST_PEER = "lost_peer"
"""Phase of a process that ends only because it lost the connection to another."""
_PULSE = 256
"""Bytes of the pulse; an error follows it in the file."""


@dataclass(frozen=True)
class ProcessState:
    rank: int
    pid: int
    host: str
    beats: int
    """Grows with every report; two equal readings mean no progress between them."""
    step: int
    phase: str
    """`starting`, `training`, `evaluating`, `saving`, `finished` or `lost_peer`."""
    error: EvergreenError | None
    """The error that ended the process, if it could report one."""


class Heartbeat:
    """The writing side, one in each process of a training."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._beats = 0
        self._step = 0
        self._file = os.open(folder / f"rank-{rank}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(self._file, b" " * _SIZE, 0)
        os.fsync(self._file)
        stack = os.open(folder / f"stack-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        atexit.register(self._close, stack)
        self.beat("starting")

    def beat(self, phase: str, step: int | None = None) -> None:
        """Report progress; this costs a few microseconds."""
        self._beats += 1
        self._step = self._step if step is None else step
        line = f"{os.getpid()} {os.uname().nodename} {self._beats} {self._step} {phase}"
        os.pwrite(self._file, line.ljust(_PULSE).encode(), 0)

    def _close(self, stack: int) -> None:
        """Close the files, so that the end of the process does not take them for unfinished ones."""
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        os.close(stack)
        os.close(self._file)

    def fail(self, error: EvergreenError) -> None:
        """Report the error that ends this process; only the first one counts."""
        if not os.pread(self._file, _SIZE - _PULSE, _PULSE).strip():
            os.pwrite(self._file, error.to_json(_SIZE - _PULSE).encode(), _PULSE)


def read_process_states(folder: Path) -> list[ProcessState]:
    """Return what the processes of the run in `folder` reported last, by rank; ranks that have not started are missing."""
    found = []
    for path in folder.glob("rank-*"):
        content = path.read_bytes()
        words = content[:_PULSE].decode().split()
        if len(words) == 5:
            pid, host, beats, step, phase = words
            rank, error = int(path.name.removeprefix("rank-")), content[_PULSE:].strip()
            reported = error_from_json(error) if error else None
            found.append(ProcessState(rank, int(pid), host, int(beats), int(step), phase, reported))
    return sorted(found, key=lambda state: state.rank)


def delete_process_states(folder: Path) -> None:
    """Delete what the processes of an earlier start reported."""
    for path in (*folder.glob("rank-*"), *folder.glob("stack-*")):
        path.unlink()

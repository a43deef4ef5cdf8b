"""What each process of a training tells the outside: that it is alive, how far it is, and what it failed of.

A process keeps one small file, `rank-<n>`, in its run's folder. The file gets its blocks when it is made, so that a last
word can be written on a disk that is full. SIGUSR1 makes the process write the stacks of its threads to `stack-<n>`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from params import EvergreenError

_SIZE = 16 * 1024
LOST_PEER = "bereft"
"""Phase of a process that ends only because it lost the connection to another."""
_PULSE = 256
"""Bytes of the pulse; the note of a failure stands behind it."""


@dataclass(frozen=True)
class Note:
    """An error, as one process hands it to another."""

    type: str
    where: str
    what: str
    fix: str

    @classmethod
    def of(cls, error: EvergreenError) -> Note:
        """The note that says `error`."""
        return cls(type(error).__name__, error.where, error.what, error.fix)


@dataclass(frozen=True)
class Pulse:
    """The state of one process when it last showed one."""

    rank: int
    pid: int
    host: str
    beats: int
    """Grows with every sign of life; two equal readings mean no progress between them."""
    step: int
    phase: str
    """`starting`, `training`, `evaluating`, `saving`, `finished` or `bereft`."""
    note: Note | None
    """What the process failed of, if it could still say so."""


class Heartbeat:
    """The writing side, one for each process of a training.

    Args:
        folder: the run's folder.
        rank: number of this process among those of the training.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._beats = 0
        self._step = 0
        self._file = os.open(folder / f"rank-{rank}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(self._file, b" " * _SIZE, 0)
        os.fsync(self._file)
        self._stack = (folder / f"stack-{rank}").open("w", encoding="utf-8")
        faulthandler.register(signal.SIGUSR1, file=self._stack, all_threads=True)
        self.beat("starting")

    def beat(self, phase: str, step: int | None = None) -> None:
        """Show progress; costs a few microseconds."""
        self._beats += 1
        self._step = self._step if step is None else step
        line = f"{os.getpid()} {os.uname().nodename} {self._beats} {self._step} {phase}"
        os.pwrite(self._file, line.ljust(_PULSE).encode(), 0)

    def fail(self, error: EvergreenError) -> None:
        """Leave the reason why this process ends; the first one stays."""
        if not os.pread(self._file, _SIZE - _PULSE, _PULSE).strip():
            text = asdict(Note.of(error))
            while len(json.dumps(text)) > _SIZE - _PULSE:
                text["what"] = text["what"][: len(text["what"]) // 2] + " ..."
            os.pwrite(self._file, json.dumps(text).encode(), _PULSE)


def pulses(folder: Path) -> list[Pulse]:
    """What the processes of the run in `folder` showed last, by rank; those that have not started are missing."""
    found = []
    for path in folder.glob("rank-*"):
        content = path.read_bytes()
        words = content[:_PULSE].split()
        if len(words) == 5:
            pid, host, beats, step, phase = (word.decode() for word in words)
            note = content[_PULSE:].strip()
            rank = int(path.name.removeprefix("rank-"))
            said = Note(**json.loads(note)) if note else None
            found.append(Pulse(rank, int(pid), host, int(beats), int(step), phase, said))
    return sorted(found, key=lambda pulse: pulse.rank)


def clear(folder: Path) -> None:
    """Forget the processes of an earlier start."""
    for pattern in ("rank-*", "stack-*"):
        for path in folder.glob(pattern):
            path.unlink()

"""The processes of a training, seen from outside: which of them live, and which make no progress, and where.

This module reads their heartbeats and asks the kernel about the processes on this machine. It starts no process, and it
does not decide what a training does next.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainer.runtime import heartbeat
from trainer.runtime.heartbeat import ProcessState

_LONGEST_GAP_S = 2.0
"""The most that one poll adds to the idle time of a process: while this process, or the machine, was itself suspended, the
others may have been suspended too."""
STARTING_S = 60.0
"""The least time that a process gets to start: its imports may come from a slow or busy disk."""
_NOISE_S = 2.0
"""Differences in idle time that do not show which process waits for another."""
_STACK_S = 5.0
"""How long a process gets to write its stacks."""
_WAITING = re.compile(
    r"/torch/distributed/|/torch/autograd/graph\.py$|/accelerate/utils/operations\.py$|/trainer/loop/collectives\.py$"
)
"""Files at the top of the stack of a process that waits for others: collectives, and the backward pass that runs them."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_NOT_THE_USERS = ("<", sys.prefix, sys.base_prefix, str(Path(os.__file__).parent))


@dataclass(frozen=True)
class StalledRank:
    """A process that makes no progress."""

    rank: int
    idle_s: float
    pulse: ProcessState | None
    """None if it has never reported."""
    state: str | None
    """The kernel's name of its state; None if it runs on another machine."""
    stack: str
    """The stacks of all of its threads, the main thread last; empty if it wrote none."""

    def __str__(self) -> str:
        if self.pulse is None:
            return f"rank {self.rank} has not started in {self.idle_s:.0f} s"
        where = f"process {self.pulse.pid}" if self.state else f"process {self.pulse.pid} on {self.pulse.host}"
        state = f", {self.state}" if self.state else ""
        line = f"rank {self.rank} ({where}) has made no progress for {self.idle_s:.0f} s: step {self.pulse.step}, "
        return "\n    ".join([f"{line}{self.pulse.phase}{state}", *self.places])

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger stopped it."""
        return self.state in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}

    @property
    def is_waiting(self) -> bool:
        """Whether its main thread waits for other processes."""
        return bool(self._frames) and any(_WAITING.search(path) for path, _, _ in self._frames[:3])

    @property
    def places(self) -> list[str]:
        """The innermost line of the main thread, and the innermost lines in the code of the project or its user."""
        own = [frame for frame in self._frames if not frame[0].startswith(_NOT_THE_USERS)][:3]
        shown = own if self._frames[:1] == own[:1] else [*self._frames[:1], *own]
        return [f"at {path.removeprefix(f'{Path.cwd()}/')}:{line} in {name}" for path, line, name in shown]

    @property
    def _frames(self) -> list[tuple[str, str, str]]:
        """Frames of the main thread, innermost first: file, line, function."""
        return _FRAME.findall(self.stack.split("(most recent call first):")[-1])


class RankMonitor:
    """The processes of one start of a training."""

    def __init__(self, folder: Path, count: int) -> None:
        self.pulses: list[ProcessState] = []
        """Their heartbeats at the last poll, by rank."""
        self._folder = folder
        self._idle_s = dict.fromkeys(range(count), 0.0)
        self._known: dict[int, psutil.Process | None] = {}
        self._polled_at = time.monotonic()

    def poll(self) -> None:
        """Read the heartbeats; processes without progress since the last poll get that time as idle time."""
        now = time.monotonic()
        elapsed_s = min(now - self._polled_at, _LONGEST_GAP_S)
        self._polled_at = now
        before = {pulse.rank: (pulse.pid, pulse.beats) for pulse in self.pulses}
        with contextlib.suppress(ValueError):  # read while it was being written: the next poll will do
            self.pulses = heartbeat.read_process_states(self._folder)
        after = {pulse.rank: (pulse.pid, pulse.beats) for pulse in self.pulses}
        for rank in self._idle_s:
            moved = before.get(rank) != after.get(rank)
            self._idle_s[rank] = 0.0 if moved else self._idle_s[rank] + elapsed_s
        for pulse in self.pulses:
            if pulse.host == os.uname().nodename and pulse.pid not in self._known:
                self._known[pulse.pid] = None  # it may have ended already
                with contextlib.suppress(psutil.NoSuchProcess):  # a later process with the same id does not match it
                    self._known[pulse.pid] = psutil.Process(pulse.pid)

    def local_pids(self) -> set[int]:
        """Return the ids of the processes that run, or ran, on this machine."""
        return set(self._known)

    def lost(self) -> list[ProcessState]:
        """Return the ranks that ended before the training did."""
        return [p for p in self.pulses if p.pid in self._known and not self._lives(p.pid) and p.phase != "finished"]

    def kill(self) -> set[int]:
        """Kill the living processes on this machine; return their ids."""
        alive = {pid: process for pid, process in self._known.items() if process and self._lives(pid)}
        for process in alive.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        return set(alive)

    def stalled(self, timeout_s: float) -> list[StalledRank]:
        """Return the ranks that block the training, once a process has made no progress for `timeout_s`; else none.

        A rank that waits for a stalled one makes no progress either. The stalled ones are, in this order: those that
        never started, were stopped, are behind in steps, were idle clearly before the others, or do not wait in a
        collective, as their stacks show. If none of that tells them apart, all are returned.
        """
        suspects = self._idle_ranks(timeout_s)
        if not suspects:
            return []
        by_rank = {pulse.rank: pulse for pulse in self.pulses}
        if missing := [rank for rank in suspects if rank not in by_rank]:
            return [StalledRank(rank, self._idle_s[rank], None, None, "") for rank in missing]
        steps = {rank: by_rank[rank].step for rank in suspects}
        return _find_blocking([self._examine(by_rank[rank]) for rank in suspects], steps)

    def _idle_ranks(self, timeout_s: float) -> list[int]:
        """Return the ranks that are idle for half of what they may at least, once one is for all of it."""
        started = {pulse.rank for pulse in self.pulses if pulse.phase != "starting"}
        patience_s = {rank: timeout_s if rank in started else max(timeout_s, STARTING_S) for rank in self._idle_s}
        if all(idle_s < patience_s[rank] for rank, idle_s in self._idle_s.items()):
            return []
        return [rank for rank, idle_s in self._idle_s.items() if idle_s >= patience_s[rank] / 2]

    def _examine(self, pulse: ProcessState) -> StalledRank:
        process, path = self._known.get(pulse.pid), self._folder / f"stack-{pulse.rank}"
        state, stack = None, ""
        with contextlib.suppress(psutil.Error):
            if process:
                state = str(process.status())
                process.send_signal(signal.SIGUSR1)
                process.send_signal(signal.SIGCONT)  # a stopped process could not write its stacks
                give_up, size = time.monotonic() + _STACK_S, -1
                while time.monotonic() < give_up and (size <= 0 or size != path.stat().st_size):
                    size = path.stat().st_size
                    time.sleep(0.1)
                stack = path.read_text(encoding="utf-8", errors="replace")
        return StalledRank(pulse.rank, self._idle_s[pulse.rank], pulse, state, stack)

    def _lives(self, pid: int) -> bool:
        process = self._known.get(pid)
        with contextlib.suppress(psutil.Error):
            return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False


def _find_blocking(stalled: list[StalledRank], steps: Mapping[int, int]) -> list[StalledRank]:
    """Return those of the ranks for which the others wait, by the first sign that tells some of them from the others; else all."""
    behind = min(steps.values())
    latest_s = min(one.idle_s for one in stalled)
    for blocking in (
        [one for one in stalled if one.is_stopped],
        [one for one in stalled if steps[one.rank] == behind],
        [one for one in stalled if one.idle_s > latest_s + _NOISE_S],
        [one for one in stalled if one.stack and not one.is_waiting],
    ):
        if 0 < len(blocking) < len(stalled):
            return blocking
    return stalled

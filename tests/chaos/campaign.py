"""Many kills of one victim after the other, at named write points and at random times, and the table of what came of it."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.chaos.victims import EX_TEMPFAIL, Ended, Victim
from trainer.checkpoints.fault_points import WRITE_POINTS

logger = logging.getLogger(__name__)

SEED = int(os.environ.get("EVERGREEN_CHAOS_SEED", "1"))
"""Chooses the kills. The same seed gives the same plan; where a random time falls in a save is up to the machine."""
KILLS = int(os.environ.get("EVERGREEN_CHAOS_KILLS", "6"))
IS_LONG = 2 * len(WRITE_POINTS) <= KILLS
"""Whether there are enough kills to hit every write point."""
_STARTING_S, _TRAINING_S = 4.0, 1.5
"""How long after a start, or after its first step, a kill at a random time comes at most."""
_TRIES = 3
_SLACK = 15
"""Steps that a trainer may have made between the last look at it and the end of its supervisor, and its own."""


@dataclass(frozen=True)
class Kill:
    """One kill that is to be."""

    target: str
    """A write point; or who gets the signal: `rank <n>`, `launcher` or `supervisor`."""
    number: int = 1
    """The write point is passed for the n-th time."""
    delay_s: float = 0.0
    """The time of the signal, after the first step or, `while_starting`, after the start."""
    while_starting: bool = False

    @property
    def is_at_point(self) -> bool:
        """Whether it comes at a write point, not at a random time."""
        return self.target in WRITE_POINTS

    def __str__(self) -> str:
        if self.is_at_point:
            return f"{self.target}, passed for time {self.number}"
        return f"{self.target}, {self.delay_s:.2f} s after the {'start' if self.while_starting else 'first step'}"


@dataclass
class Tally:
    """What came of the kills of one kind."""

    kills: int = 0
    resumed: list[int] = field(default_factory=list)
    """The steps at which the starts after these kills went on."""
    set_aside: int = 0
    mismatches: list[str] = field(default_factory=list)
    """Whatever was not as in the golden run, or not as it must be after such a kill."""


class Campaign:
    """The kills of one victim, and the runs that came to their end in between."""

    def __init__(self, name: str, victim: Victim) -> None:
        self.name = name
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.finished = 0
        """Runs that came to their end, and were compared as a whole."""
        self._victim = victim
        self._owed: tuple[str, int | None] = ("", None)
        """The kind of the last kill, and the step at which the next start must go on, if that can be known."""

    def carry_out(self, kills: Iterable[Kill]) -> None:
        """Train the golden run; kill the other one, compare, start it again, in the end to its end."""
        self._victim.train_golden()
        for kill in kills:
            if not any(self._strike(kill) for _ in range(_TRIES)):
                self._note(kill.target, [f"{self.name}: {kill} never came about"])
        self._settle("to the end", self._victim.run())

    def _strike(self, kill: Kill) -> bool:
        """Start, and kill; False if the run came to its end before."""
        victim, started = self._victim, time.monotonic()
        before = killed_at = victim.newest_step()
        if kill.is_at_point:
            left = victim.wait(victim.start(f"{kill.target}:{kill.number}"))
        else:
            process = victim.start()
            killed_at = _shoot(victim, process, kill)
            left = victim.wait(process)
        kind = kill.target if kill.is_at_point or not kill.while_starting else f"{kill.target}, while starting"
        if self._settle(kind, left):
            return False
        tally = self.tallies[kind]
        tally.kills += 1
        tally.resumed.append(victim.newest_step())
        is_done = victim.artifacts.report("train").exists()  # killed while it deleted the run's folder
        found = [] if is_done else [*victim.differences(), *_not_as_killed(victim, kill, left, before)]
        if kill.target == "supervisor" and not is_done and victim.newest_step() > max(before, killed_at) + _SLACK:
            found.append(f"killed at step {killed_at}, it trained on to a checkpoint of step {victim.newest_step()}")
        self._note(kind, found)
        self._owed = (kind, None if is_done else victim.newest_step())
        line = "%s: %s: from step %d to %d, %.1f s, %d mismatches"
        logger.info(line, self.name, kill, before, victim.newest_step(), time.monotonic() - started, len(found))
        if found:
            self._begin_anew()
        return True

    def _settle(self, kind: str, left: Ended) -> bool:
        """Look at where a start went on, and if it came to its end, at all that it made; whether it did."""
        killed, step = self._owed
        if killed and left.resumed_at is not None:
            self.tallies[killed].set_aside += len(left.set_aside)
            if step not in (None, left.resumed_at):
                self._note(killed, [f"the next start went on at step {left.resumed_at}, not {step}\n{left.output}"])
            self._owed = ("", None)
        if left.status == 0:
            self.finished += 1
            self._note(killed or kind, [f"at the end: {odd}" for odd in self._victim.final_differences()])
            self._begin_anew()
            return True
        if kind == "to the end":
            self._note(kind, [f"left alone, it ended with exit status {left.status}\n{left.output}"])
            return True
        return False

    def _begin_anew(self) -> None:
        self._victim.forget()
        self._owed = ("", None)

    def _note(self, kind: str, found: Sequence[str]) -> None:
        for odd in found:
            logger.error("%s: %s: %s", self.name, kind, odd)
            self.tallies[kind].mismatches.append(f"{self.name}: {kind}: {odd}")


def plan(chance: random.Random, kills: int, processes: Sequence[int]) -> list[list[Kill]]:
    """The kills for each of several victims, which train with so many `processes`.

    Half of them are at write points, each point as often as any other; half are at random times.
    """
    points: list[str] = []
    while len(points) < kills // 2:
        points += chance.sample(WRITE_POINTS, len(WRITE_POINTS))
    planned: list[list[Kill]] = [[] for _ in processes]
    for i in range(kills):
        mine = i // 2 % len(processes)
        if i % 2 == 0 and i // 2 < kills // 2:
            planned[mine].append(Kill(points[i // 2], chance.randint(1, 2)))
            continue
        target = chance.choice([*(f"rank {rank}" for rank in range(processes[mine])), "launcher", "supervisor"])
        starting = chance.random() < 0.2
        planned[mine].append(
            Kill(target, delay_s=chance.uniform(0, _STARTING_S if starting else _TRAINING_S), while_starting=starting)
        )
    return planned


def table(campaigns: Sequence[Campaign]) -> list[str]:
    """Kills by kind: how many, where the next starts went on, what was set aside, and what differed."""
    whole: dict[str, Tally] = defaultdict(Tally)
    for campaign in campaigns:
        for kind, tally in campaign.tallies.items():
            whole[kind].kills += tally.kills
            whole[kind].resumed += tally.resumed
            whole[kind].set_aside += tally.set_aside
            whole[kind].mismatches += tally.mismatches
    order = [*WRITE_POINTS, *sorted(whole.keys() - set(WRITE_POINTS))]
    rows = [("killed at", "kills", "resumed at step", "set aside", "mismatches")]
    for kind in order:
        tally = whole[kind]
        if tally.kills or tally.mismatches:
            rows.append(
                (kind, str(tally.kills), _span(tally.resumed), str(tally.set_aside), str(len(tally.mismatches)))
            )
    everything = [step for tally in whole.values() for step in tally.resumed]
    sums = [sum(tally.kills for tally in whole.values()), sum(tally.set_aside for tally in whole.values())]
    wrong = sum(len(tally.mismatches) for tally in whole.values())
    rows.append(("all", str(sums[0]), _span(everything), str(sums[1]), str(wrong)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    runs = ", ".join(f"{campaign.finished} {campaign.name}" for campaign in campaigns)
    return [*lines, f"runs that came to their end and equal the golden run bit for bit: {runs}" if not wrong else runs]


def _span(steps: Sequence[int]) -> str:
    return f"{min(steps)} to {max(steps)}" if steps else "-"


def _shoot(victim: Victim, process: subprocess.Popen[bytes], kill: Kill) -> int:
    """Send SIGKILL to the target at its time, unless the run ends before; the step at which the trainer was."""
    if not kill.while_starting:
        while process.poll() is None and not _trains(victim, process):
            time.sleep(0.01)
    due = time.monotonic() + kill.delay_s
    while process.poll() is None:
        target = _find(victim, process, kill.target) if time.monotonic() >= due else None
        if target:
            pulse = victim.pulses().get(0)
            os.kill(target, signal.SIGKILL)
            return pulse.step if pulse else 0
        time.sleep(0.01)
    return 0


def _trains(victim: Victim, process: subprocess.Popen[bytes]) -> bool:
    """Whether this start, not the one before, has come to its first step."""
    pulse = victim.pulses().get(0)
    return pulse is not None and pulse.phase in ("training", "saving") and _is_below(victim, pulse.pid)


def _find(victim: Victim, process: subprocess.Popen[bytes], target: str) -> int | None:
    if target == "supervisor":
        return process.pid
    if target == "launcher":
        return next(
            (p.pid for p in victim.project.processes("trainer.runtime.launcher") if p.ppid() == process.pid), None
        )
    pulse = victim.pulses().get(int(target.removeprefix("rank ")))
    return pulse.pid if pulse and pulse.phase != "finished" and _is_below(victim, pulse.pid) else None


def _is_below(victim: Victim, pid: int) -> bool:
    return any(process.pid == pid for process in victim.project.processes("trainer.worker"))


def _not_as_killed(victim: Victim, kill: Kill, left: Ended, before: int) -> Iterator[str]:
    """What does not fit a kill of this kind: how the stage ended, what it said, and what lies in the run's folder."""
    if victim.newest_step() < before:
        yield f"the newest checkpoint was of step {before}, and is of step {victim.newest_step()}"
    if kill.target == "supervisor":
        if left.status != -signal.SIGKILL:
            yield f"the supervisor ended with {left.status}\n{left.output}"
        return
    who = "rank 0" if kill.is_at_point else "its launcher" if kill.target == "launcher" else kill.target
    said = f"KilledError: train: {who} "
    if left.status != EX_TEMPFAIL or said not in left.output or "was killed by SIGKILL" not in left.output:
        yield f"ended with {left.status}, without the words {said!r}\n{left.output}"
    if kill.is_at_point:
        yield from (f"after a kill at {kill.target}, {odd}" for odd in _not_as_at(victim, kill, before))


def _not_as_at(victim: Victim, kill: Kill, before: int) -> Iterator[str]:
    """What in the run's folder shows that the kill came at another instant of a save than it was meant to."""
    kind, _, point = kill.target.partition(".")
    names = (".best",) if kind == "best" else (".staging/checkpoint-*",)
    staged = [path for name in names for path in victim.folder.glob(name)]
    inside = {path.name for folder in staged for path in folder.iterdir()}
    expected = {
        "state": {"position.json", "run.json", "trainer_state.json", "scheduler.pt", "rng_state*"},
        "weights": {"model.safetensors"},
        "optimizer": {"model.safetensors", "optimizer.pt"},
        "manifest": {"manifest.json"},
        "flushed": {"manifest.json"},
    }.get(point, set())
    later = {"state": "model.safetensors", "weights": "optimizer.pt", "optimizer": "manifest.json"}
    if kind == "best":
        later = {"weights": "manifest.json"}
    for name in expected:
        if not any(path.match(name) for folder in staged for path in folder.iterdir()):
            yield f"{name} is not there yet"
    if later.get(point) in inside:
        yield f"{later[point]} is there already"
    if point in ("renamed", "retired", "retained") and staged:
        yield f"{staged[0].name} is there still"
    if point == "retired" and len(list(victim.folder.glob("best-*"))) != 1:
        yield "the best weights before are there still"
    if kind == "checkpoint":
        saves = kill.number - (point not in ("renamed", "retained"))
        reached = before + saves * victim.save_steps
        if victim.newest_step() != reached:
            yield f"the newest checkpoint is of step {victim.newest_step()}, not {reached}"
        if point == "renamed" and len(victim.checkpoints()) <= min(victim.keep, reached // victim.save_steps - 1):
            yield "the oldest checkpoint is deleted already"
        if point == "retained" and len(victim.checkpoints()) > victim.keep:
            yield "the oldest checkpoint is there still"

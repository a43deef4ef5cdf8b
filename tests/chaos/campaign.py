"""Plan many kills, at write points and at random times, carry them out on victims, and count the results."""

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

from tests.chaos.victims import StartResult, Victim

WRITE_POINTS = (
    *("best.weights", "best.manifest", "best.flushed", "best.renamed", "best.retired"),
    *("checkpoint.state", "checkpoint.weights", "checkpoint.optimizer"),
    *("checkpoint.manifest", "checkpoint.flushed", "checkpoint.renamed", "checkpoint.retained"),
)
"""What trainer.checkpoints.sealed.pass_kill_point marks, in the order of a save."""

logger = logging.getLogger(__name__)

SEED = int(os.environ.get("EVERGREEN_CHAOS_SEED", "1"))
"""The same seed gives the same plan, but a kill at a random time may hit another part of a save each time."""
KILLS = int(os.environ.get("EVERGREEN_CHAOS_KILLS", "2"))
IS_LONG = 2 * len(WRITE_POINTS) <= KILLS
"""Whether there are enough kills to hit every write point."""
_STARTING_S, _TRAINING_S = 4.0, 1.5
"""The most seconds between a start, or its first step, and a kill at a random time."""
_TRIES = 3
_SLACK = 15
"""Steps that a training may take between its last observed step and its death with the supervisor."""


@dataclass(frozen=True)
class Kill:
    """A planned kill."""

    target: str
    """A write point, or the process to kill: `rank <n>`, `launcher` or `supervisor`."""
    number: int = 1
    """Kill when the write point is reached for the n-th time."""
    delay_s: float = 0.0
    """Seconds from the first step to the signal; from the start if `while_starting`."""
    while_starting: bool = False

    @property
    def is_at_point(self) -> bool:
        """Whether the kill is at a write point and not at a random time."""
        return self.target in WRITE_POINTS

    def __str__(self) -> str:
        if self.is_at_point:
            return f"{self.target}, occurrence {self.number}"
        return f"{self.target}, {self.delay_s:.2f} s after the {'start' if self.while_starting else 'first step'}"


@dataclass
class Tally:
    """The results of the kills of one kind."""

    kills: int = 0
    resumed: list[int] = field(default_factory=list)
    """The newest checkpoint after each kill, from which the next start must resume."""
    set_aside: int = 0
    mismatches: list[str] = field(default_factory=list)
    """Differences from the golden run, and from the state that such a kill must leave."""


class Campaign:
    """The kills of one victim, and its runs that finished in between."""

    def __init__(self, name: str, victim: Victim) -> None:
        self.name = name
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.finished = 0
        """Number of runs that finished and were compared in full."""
        self._victim = victim
        self._expected_resume: tuple[str, int | None] = ("", None)
        """The kind of the last kill, and the step from which the next start must resume; None if unknown."""

    def run(self, kills: Iterable[Kill]) -> None:
        """Train the golden run. Then kill the other run, compare and start it again, for each kill; let it finish at the end."""
        self._victim.train_golden()
        for kill in kills:
            if not any(self._kill(kill) for _ in range(_TRIES)):
                self._record(kill.target, [f"{self.name}: {kill}: the run always finished before the kill"])
        self._check_start("to the end", self._victim.run(fork=not IS_LONG))

    def _kill(self, kill: Kill) -> bool:
        """Start the run and kill it; return False if it finished before."""
        victim, started = self._victim, time.monotonic()
        before = killed_at = victim.newest_step()
        if kill.is_at_point:
            result = victim.wait(victim.start(f"{kill.target}:{kill.number}", fork=not IS_LONG))
        else:
            process = victim.start()
            killed_at = _kill_at_time(victim, process, kill)
            result = victim.wait(process)
        kind = kill.target if kill.is_at_point or not kill.while_starting else f"{kill.target}, while starting"
        if self._check_start(kind, result):
            return False
        tally = self.tallies[kind]
        tally.kills += 1
        tally.resumed.append(victim.newest_step())
        is_done = victim.artifacts.report("train").exists()  # killed while it deleted the run's folder
        found = [] if is_done else [*victim.differences(), *_kill_mismatches(victim, kill, result, before)]
        if kill.target == "supervisor" and not is_done and victim.newest_step() > max(before, killed_at) + _SLACK:
            found.append(f"killed at step {killed_at}, it trained on to a checkpoint of step {victim.newest_step()}")
        self._record(kind, found)
        self._expected_resume = (kind, None if is_done else victim.newest_step())
        line = "%s: %s: from step %d to %d, %.1f s, %d mismatches"
        logger.info(line, self.name, kill, before, victim.newest_step(), time.monotonic() - started, len(found))
        if found:
            self._reset()
        return True

    def _check_start(self, kind: str, result: StartResult) -> bool:
        """Check from which step a start resumed, and its results if it finished; return whether it finished."""
        killed, step = self._expected_resume
        if killed and result.resumed_at is not None:
            self.tallies[killed].set_aside += len(result.set_aside)
            if step not in (None, result.resumed_at):
                self._record(
                    killed, [f"the next start resumed at step {result.resumed_at}, not {step}\n{result.output}"]
                )
            self._expected_resume = ("", None)
        if result.status == 0:
            self.finished += 1
            self._record(
                killed or kind, [f"at the end: {difference}" for difference in self._victim.final_differences()]
            )
            self._reset()
            return True
        if kind == "to the end":
            self._record(kind, [f"without a kill, it ended with exit status {result.status}\n{result.output}"])
            return True
        return False

    def _reset(self) -> None:
        self._victim.delete_run()
        self._expected_resume = ("", None)

    def _record(self, kind: str, found: Sequence[str]) -> None:
        for mismatch in found:
            logger.error("%s: %s: %s", self.name, kind, mismatch)
            self.tallies[kind].mismatches.append(f"{self.name}: {kind}: {mismatch}")


def plan(rng: random.Random, kills: int, processes: Sequence[int]) -> list[list[Kill]]:
    """Plan kills for several victims, given their numbers of processes.

    Half of the kills are at write points, equally often at each; the others are at random times.
    """
    points: list[str] = []
    while len(points) < kills // 2:
        points += rng.sample(WRITE_POINTS, len(WRITE_POINTS))
    planned: list[list[Kill]] = [[] for _ in processes]
    for i in range(kills):
        victim = i // 2 % len(processes)
        if i % 2 == 0 and i // 2 < kills // 2:
            planned[victim].append(Kill(points[i // 2], rng.randint(1, 2)))
            continue
        ranks = [f"rank {rank}" for rank in range(processes[victim])]
        target = rng.choice([*ranks, *(["launcher"] if len(ranks) > 1 else []), "supervisor"])
        starting = rng.random() < 0.2
        planned[victim].append(
            Kill(target, delay_s=rng.uniform(0, _STARTING_S if starting else _TRAINING_S), while_starting=starting)
        )
    return planned


def table(campaigns: Sequence[Campaign]) -> list[str]:
    """Return a table: for each kind of kill their number, the steps to resume from, checkpoints set aside, mismatches."""
    totals: dict[str, Tally] = defaultdict(Tally)
    for campaign in campaigns:
        for kind, tally in campaign.tallies.items():
            totals[kind].kills += tally.kills
            totals[kind].resumed += tally.resumed
            totals[kind].set_aside += tally.set_aside
            totals[kind].mismatches += tally.mismatches
    order = [*WRITE_POINTS, *sorted(totals.keys() - set(WRITE_POINTS))]
    rows = [("killed at", "kills", "resumed at step", "set aside", "mismatches")]
    for kind in order:
        tally = totals[kind]
        if tally.kills or tally.mismatches:
            rows.append(
                (kind, str(tally.kills), _span(tally.resumed), str(tally.set_aside), str(len(tally.mismatches)))
            )
    steps = [step for tally in totals.values() for step in tally.resumed]
    sums = [sum(tally.kills for tally in totals.values()), sum(tally.set_aside for tally in totals.values())]
    wrong = sum(len(tally.mismatches) for tally in totals.values())
    rows.append(("all", str(sums[0]), _span(steps), str(sums[1]), str(wrong)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    runs = ", ".join(f"{campaign.finished} {campaign.name}" for campaign in campaigns)
    return [*lines, runs if wrong else f"finished runs, equal to the golden run bit for bit: {runs}"]


def _span(steps: Sequence[int]) -> str:
    return f"{min(steps)} to {max(steps)}" if steps else "-"


def _kill_at_time(victim: Victim, process: subprocess.Popen[bytes], kill: Kill) -> int:
    """Send SIGKILL to the target at the planned time, unless the run ends before; return the step of the training."""
    if not kill.while_starting:
        while process.poll() is None and not _is_training(victim, process):
            time.sleep(0.01)
    due = time.monotonic() + kill.delay_s
    while process.poll() is None:
        target = _target_pid(victim, process, kill.target) if time.monotonic() >= due else None
        if target:
            pulse = victim.pulses().get(0)
            os.kill(target, signal.SIGKILL)
            return pulse.step if pulse else 0
        time.sleep(0.01)
    return 0


def _is_training(victim: Victim, process: subprocess.Popen[bytes]) -> bool:
    """Whether this start, and not the one before, has reached its first step."""
    pulse = victim.pulses().get(0)
    return pulse is not None and pulse.phase in ("training", "saving") and _is_worker(victim, pulse.pid)


def _target_pid(victim: Victim, process: subprocess.Popen[bytes], target: str) -> int | None:
    if target == "supervisor":
        return process.pid
    if target == "launcher":
        return next(
            (p.pid for p in victim.project.processes("trainer.runtime.launcher") if p.ppid() == process.pid), None
        )
    pulse = victim.pulses().get(int(target.removeprefix("rank ")))
    return pulse.pid if pulse and pulse.phase != "finished" and _is_worker(victim, pulse.pid) else None


def _is_worker(victim: Victim, pid: int) -> bool:
    return any(process.pid == pid for process in victim.project.processes("trainer.worker"))


def _kill_mismatches(victim: Victim, kill: Kill, result: StartResult, before: int) -> Iterator[str]:
    """Yield what differs from the exit code, the output and the run's folder that this kill must leave."""
    if victim.newest_step() < before:
        yield f"the newest checkpoint was at step {before} and is now at step {victim.newest_step()}"
    if kill.target == "supervisor":
        if result.status != -signal.SIGKILL:
            yield f"the supervisor ended with {result.status}\n{result.output}"
        return
    killed = "rank 0" if kill.is_at_point else "its launcher" if kill.target == "launcher" else kill.target
    error = f"KilledError: train: {killed} "
    if result.status != os.EX_TEMPFAIL or error not in result.output or "was killed by SIGKILL" not in result.output:
        yield f"ended with {result.status}, without {error!r}\n{result.output}"
    if kill.is_at_point:
        yield from (
            f"after a kill at {kill.target}, {difference}"
            for difference in _write_point_mismatches(victim, kill, before)
        )


def _write_point_mismatches(victim: Victim, kill: Kill, before: int) -> Iterator[str]:
    """Yield what the run's folder should not contain, or lacks, after a kill at this write point."""
    kind, _, point = kill.target.partition(".")
    names = (".best",) if kind == "best" else (".staging/checkpoint-*",)
    staged = [path for name in names for path in victim.folder.glob(name)]
    files = [path for folder in staged for path in folder.iterdir()]
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
        if not any(path.match(name) for path in files):
            yield f"{name} does not exist yet"
    if later.get(point) in {path.name for path in files}:
        yield f"{later[point]} exists already"
    if point in ("renamed", "retired", "retained") and staged:
        yield f"{staged[0].name} still exists"
    if point == "retired" and len(list(victim.folder.glob("best-*"))) != 1:
        yield "the previous best weights still exist"
    if kind == "checkpoint":
        saves = kill.number - (point not in ("renamed", "retained"))
        reached = before + saves * victim.save_steps
        if victim.newest_step() != reached:
            yield f"the newest checkpoint is at step {victim.newest_step()}, not {reached}"
        if point == "renamed" and len(victim.checkpoints()) <= min(victim.keep, reached // victim.save_steps - 1):
            yield "the oldest checkpoint is deleted already"
        if point == "retained" and len(victim.checkpoints()) > victim.keep:
            yield "the oldest checkpoint still exists"

"""Several machines in one training, which find each other through a folder that all of them share, `.scratch/<recipe>/machines`.

    start.json         machine 0 announces a start of the training: it waits for the others, runs, failed or finished
    machine-<n>.ready  the start that machine n is ready for

Only then do the processes start, and meet at `launch.main_process_ip` by accelerate's own rendezvous. So a machine that is
late delays the start and breaks nothing, and a machine that comes back takes part in the next start.

Machine 0 runs the train stage, which supervises all. The others `join`: they start their share of the processes, write no artifacts
and decide nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from params import ModelError, PreemptedError, RecipeError, StorageError, TransientError
from params.foundation.artifacts import Artifacts, write_text_atomically
from params.foundation.file_lock import hold_file_lock
from params.schema import Launch
from params.sections.base import Section
from tasks.recipes.loading import load
from tasks.training import processes
from trainer.job import Job
from trainer.runtime import heartbeat
from trainer.runtime.launcher import LaunchFailureReport
from trainer.runtime.lifetime import STOP

logger = logging.getLogger(__name__)

_POLL_S = 0.25


class StartAnnouncement(Section):
    """A start of the training, as machine 0 announces it."""

    start: str
    """Unique name of the start."""
    job: Path
    """The job that the processes on every machine read."""
    state: Literal["waiting", "running", "failed", "finished"]


def _read_announcement(folder: Path) -> StartAnnouncement | None:
    """Return what machine 0 announced last; None if it has not announced anything yet."""
    with contextlib.suppress(FileNotFoundError):
        return StartAnnouncement.model_validate_json((folder / "start.json").read_text(encoding="utf-8"), strict=False)
    return None


@contextlib.contextmanager
def wait_for_machines_and_announce(job: Job, job_path: Path, stop_requested: Callable[[], bool]) -> Iterator[None]:
    """Wait for the other machines before the block, and announce after it how it ended. With one machine, do neither.

    `stop_requested` ends the wait when it returns true.

    Raises:
        TransientError: a machine did not come within `launch.stall_timeout_s`.
    """
    if job.launch.num_machines == 1:
        yield
        return
    folder = job.folder.parents[1] / "machines"
    start = StartAnnouncement(start=uuid.uuid4().hex, job=job_path, state="waiting")

    def announce(state: str) -> None:
        write_text_atomically(folder / "start.json", start.model_copy(update={"state": state}).model_dump_json())

    try:
        announce("waiting")
        _wait_for_all(folder, start, job.launch, stop_requested)
        announce("running")
        yield
    except BaseException:
        announce("failed")
        raise
    announce("finished")


def _wait_for_all(folder: Path, start: StartAnnouncement, launch: Launch, stop_requested: Callable[[], bool]) -> None:
    command = f"evergreen join params/{folder.parent.name}.yaml --machine"
    give_up = time.monotonic() + launch.stall_timeout_s
    logged: list[int] = []
    ready = {n: folder / f"machine-{n}.ready" for n in range(1, launch.num_machines)}
    while missing := [n for n, file in ready.items() if not file.exists() or file.read_text() != start.start]:
        if missing != logged:
            logged = missing
            logger.info("train: waiting for %s: run `%s <n>` there", _named(missing), command)
        if stop_requested():
            return
        if time.monotonic() > give_up:
            what = f"{_named(missing)} did not come within {launch.stall_timeout_s:g} s"
            fix = f"run `{command} {missing[0]}` there and start again"
            raise TransientError.at("launch.num_machines", what, fix)
        time.sleep(_POLL_S)
    logger.info("train: all %d machines are there", launch.num_machines)


def _named(machines: list[int]) -> str:
    return f"machine{'s' * (len(machines) > 1)} {', '.join(map(str, machines))}"


def join_training_as_machine(recipe_path: Path, *, machine: int) -> None:
    """Take part as machine `machine` in the training of a recipe, until it is finished.

    Raises:
        RecipeError: the recipe has no such machine.
        StorageError: the run's folder does not exist on this machine.
        TransientError: this machine takes part already.
        PreemptedError: SIGTERM or SIGINT came; the processes of all machines were asked to stop with a checkpoint.
    """
    count = load(recipe_path).launch.num_machines
    if not 0 < machine < count:
        fix = f"use one from 1 to {count - 1}" if count > 1 else "set it, and where the machines meet"
        raise RecipeError.at("launch.num_machines", f"is {count}: machine {machine} cannot join", fix)
    folder = Artifacts(recipe_path.stem).machines.absolute()
    with (
        hold_file_lock(folder / f"machine-{machine}.lock", f"machine {machine}"),
        processes.collect_stop_signals() as signals,
    ):
        last = _read_announcement(folder)
        seen = last.start if last and last.state != "waiting" else None
        while True:
            logger.info("join: machine %d waits for machine 0, `evergreen train %s`", machine, recipe_path)
            while not ((start := _read_announcement(folder)) and start.state == "waiting" and start.start != seen):
                _raise_if_stopped(signals)
                time.sleep(_POLL_S)
            write_text_atomically(folder / f"machine-{machine}.ready", start.start)
            if _take_part(folder, machine, start, signals) == "finished":
                logger.info("join: the training is finished")
                return
            logger.info("join: this start of the training failed")
            seen = start.start


def _take_part(folder: Path, machine: int, start: StartAnnouncement, signals: processes.ReceivedStopSignals) -> str:
    """Run this machine's processes of one start to their end; return the start's state after it."""
    while (announced := _read_announcement(folder)) == start:
        _raise_if_stopped(signals)
        time.sleep(_POLL_S)
    if announced != start.model_copy(update={"state": "running"}):
        return "failed"
    if not start.job.exists():
        fix = "give every machine the project's folder under the same path"
        raise StorageError(str(start.job), f"does not exist on machine {machine}", fix)
    job = Job.load(start.job)
    logger.info("join: machine %d takes part in run %s", machine, job.folder.name)
    process = processes.start_processes(job, start.job, machine=machine)
    try:
        _follow_processes(process, lambda: _read_announcement(folder) == announced, job, machine, signals)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(processes.END_S)
    finally:
        processes.kill_processes(process)
    _raise_if_stopped(signals)
    now = _read_announcement(folder)
    return now.state if now and now.start == start.start else "failed"


def _follow_processes(
    process: subprocess.Popen[bytes],
    goes_on: Callable[[], bool],
    job: Job,
    machine: int,
    signals: processes.ReceivedStopSignals,
) -> None:
    """Wait while the start goes on; or, after a signal, until the processes should have stopped."""
    kill_at, is_reported = None, False
    while goes_on():
        if process.poll() and not is_reported:
            is_reported = True
            _report_failed_launch(job, machine)
        if signals.first and kill_at is None and process.poll() is None:
            (job.folder / STOP).touch()
            kill_at = time.monotonic() + job.launch.grace_s
        if signals.is_urgent or (signals.first and time.monotonic() > (kill_at or 0)):
            return
        time.sleep(_POLL_S)


def _report_failed_launch(job: Job, machine: int) -> None:
    """Give processes that could not start an error, so that the train stage does not wait for them."""
    share = job.launch.num_processes // job.launch.num_machines
    own = range(machine * share, (machine + 1) * share)
    if any(pulse.rank in own for pulse in heartbeat.read_process_states(job.folder)):
        return
    report = LaunchFailureReport.load(processes.launcher_report_path(job, machine))
    what = f"machine {machine} ({os.uname().nodename}) could not start its processes"
    if report.error:
        what += f": {report.error}"
    heartbeat.Heartbeat(job.folder, own[0]).fail(ModelError("train", what, "see the output of `join` on that machine"))


def _raise_if_stopped(signals: processes.ReceivedStopSignals) -> None:
    if signals.first:
        fix = "start it again: it takes part in the next start of the training"
        raise PreemptedError("join", f"stopped by {signals.first.name}", fix)

"""join: let a further machine take part in a training that the train stage on machine 0 supervises.

The machine waits for machine 0, starts its share of the processes, and waits for the next start if one fails. It writes no
artifacts and decides nothing; it ends when the training is finished.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from pathlib import Path

from params import ModelError, PreemptedError, RecipeError, StorageError, load
from params.foundation.artifacts import Artifacts
from tasks.training import processes
from tasks.training.rendezvous import POLL_S, Announcement, read_announcement, report_ready
from trainer.job import Job
from trainer.runtime import heartbeat
from trainer.runtime.launcher import LaunchReport
from trainer.runtime.lifetime import STOP, hold_file_lock

logger = logging.getLogger(__name__)


def join(recipe_path: Path, *, machine: int) -> None:
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
        processes.catch_stop_signals() as signals,
    ):
        last = read_announcement(folder)
        seen = last.start if last and last.state != "waiting" else None
        while True:
            logger.info("join: machine %d waits for machine 0, `evergreen train %s`", machine, recipe_path)
            start = _next_start(folder, seen, signals)
            report_ready(folder, machine, start)
            if _take_part(folder, machine, start, signals) == "finished":
                logger.info("join: the training is finished")
                return
            logger.info("join: this start of the training failed")
            seen = start.start


def _next_start(folder: Path, seen: str | None, signals: processes.StopSignals) -> Announcement:
    """Wait until machine 0 announces another start than `seen`."""
    while not ((start := read_announcement(folder)) and start.state == "waiting" and start.start != seen):
        _raise_if_stopped(signals)
        time.sleep(POLL_S)
    return start


def _take_part(folder: Path, machine: int, start: Announcement, signals: processes.StopSignals) -> str:
    """Run this machine's processes of one start to their end; return the start's state after it."""
    while (announced := read_announcement(folder)) == start:
        _raise_if_stopped(signals)
        time.sleep(POLL_S)
    if announced != start.model_copy(update={"state": "running"}):
        return "failed"
    if not start.job.exists():
        fix = "give every machine the project's folder under the same path"
        raise StorageError(str(start.job), f"does not exist on machine {machine}", fix)
    job = Job.load(start.job)
    logger.info("join: machine %d takes part in run %s", machine, job.folder.name)
    process = processes.start_processes(job, start.job, machine=machine)
    kill_at: float | None = None
    is_reported = False
    try:
        while read_announcement(folder) == announced:
            if process.poll() and not is_reported:
                is_reported = True
                _report_if_none_started(job, machine)
            if signals.first and kill_at is None and process.poll() is None:
                (job.folder / STOP).touch()
                kill_at = time.monotonic() + job.launch.grace_s
            if signals.is_urgent or (signals.first and time.monotonic() > (kill_at or 0)):
                break
            time.sleep(POLL_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(processes.END_S)
    finally:
        processes.kill_processes(process)
    _raise_if_stopped(signals)
    now = read_announcement(folder)
    return now.state if now and now.start == start.start else "failed"


def _report_if_none_started(job: Job, machine: int) -> None:
    """Report an error for processes that could not start, so that the train stage does not wait for them."""
    share = job.launch.num_processes // job.launch.num_machines
    own = range(machine * share, (machine + 1) * share)
    if any(pulse.rank in own for pulse in heartbeat.read_process_states(job.folder)):
        return
    report = LaunchReport.load(processes.report_path(job, machine))
    what = f"machine {machine} ({os.uname().nodename}) could not start its processes"
    what += f": {report.error}" if report.error else ""
    heartbeat.Heartbeat(job.folder, own[0]).fail(ModelError("train", what, "see the output of `join` on that machine"))


def _raise_if_stopped(signals: processes.StopSignals) -> None:
    if signals.first:
        fix = "start it again: it takes part in the next start of the training"
        raise PreemptedError("join", f"stopped by {signals.first.name}", fix)

"""join: what a further machine does in a training of several: take part in what the train stage on machine 0 supervises.

It waits for machine 0, starts its share of the processes, and comes back for the next start when one has failed. It writes
no artifacts and judges nothing; it ends when the training is finished.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from pathlib import Path

from params import ModelError, PreemptedError, RecipeError, StorageError, load
from params.artifacts import Artifacts
from tasks.training.rendezvous import POLL_S, Call, answer, folder, read_call
from tasks.training.supervisor import Requests, end_processes, report_path, requests, start_processes
from trainer.job import Job
from trainer.runtime import heartbeat
from trainer.runtime.launcher import LaunchReport
from trainer.runtime.lifetime import exclusive
from trainer.worker import STOP

logger = logging.getLogger(__name__)

_REST_S = 5.0
"""How long processes that are about to end may take."""


def join(recipe_path: Path, *, machine: int) -> None:
    """Take part as machine `machine` in the training of a recipe, until it is finished.

    Raises:
        RecipeError: the recipe has no such machine.
        StorageError: the run's folder is not there on this machine.
        TransientError: this machine takes part already.
        PreemptedError: SIGTERM or SIGINT came; the processes of all machines were asked to stop with a checkpoint.
    """
    count = load(recipe_path).launch.num_machines
    if not 0 < machine < count:
        fix = f"use one from 1 to {count - 1}" if count > 1 else "set it, and where the machines meet"
        raise RecipeError("launch.num_machines", f"is {count}: machine {machine} cannot join", fix)
    place = folder(Artifacts(recipe_path.stem).scratch.absolute())
    with exclusive(place / f"machine-{machine}.lock", f"machine {machine}"), requests() as asked:
        last = read_call(place)
        seen = last.start if last and last.state != "calling" else None
        while True:
            logger.info("join: machine %d waits for machine 0, `python -m tasks train %s`", machine, recipe_path)
            call = _next(place, seen, asked)
            answer(place, machine, call)
            if _take_part(place, machine, call, asked) == "finished":
                logger.info("join: the training is finished")
                return
            logger.info("join: this start of the training came to nothing")
            seen = call.start


def _next(place: Path, seen: str | None, asked: Requests) -> Call:
    """Machine 0's next call."""
    while not ((call := read_call(place)) and call.state == "calling" and call.start != seen):
        _check(asked)
        time.sleep(POLL_S)
    return call


def _take_part(place: Path, machine: int, call: Call, asked: Requests) -> str:
    """See one start through to its end; what machine 0 says of it."""
    while (said := read_call(place)) == call:
        _check(asked)
        time.sleep(POLL_S)
    if said != call.model_copy(update={"state": "running"}):
        return "failed"
    if not call.job.exists():
        fix = "give every machine the project's folder under the same path"
        raise StorageError(str(call.job), f"is not there on machine {machine}", fix)
    job = Job.load(call.job)
    logger.info("join: machine %d takes part in run %s", machine, job.folder.name)
    process = start_processes(job, call.job, machine=machine)
    stop_at: float | None = None
    is_told = False
    try:
        while read_call(place) == said:
            if process.poll() and not is_told:
                is_told = True
                _tell_if_none_started(job, machine)
            if asked.first and stop_at is None and process.poll() is None:
                (job.folder / STOP).touch()
                stop_at = time.monotonic() + job.launch.grace_s
            if asked.are_impatient or (asked.first and time.monotonic() > (stop_at or 0)):
                break
            time.sleep(POLL_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REST_S)
    finally:
        end_processes(process)
    _check(asked)
    now = read_call(place)
    return now.state if now and now.start == call.start else "failed"


def _tell_if_none_started(job: Job, machine: int) -> None:
    """Speak for processes that never came to speak for themselves: the train stage need not wait for them."""
    share = job.launch.num_processes // job.launch.num_machines
    own = range(machine * share, (machine + 1) * share)
    if any(pulse.rank in own for pulse in heartbeat.pulses(job.folder)):
        return
    report = LaunchReport.load(report_path(job, machine))
    what = f"machine {machine} ({os.uname().nodename}) could not start its processes"
    what += f": {report.error}" if report.error else ""
    heartbeat.Heartbeat(job.folder, own[0]).fail(ModelError("train", what, "what `join` wrote there says more"))


def _check(asked: Requests) -> None:
    if asked.first:
        what = f"stopped by {signal.Signals(asked.first).name}"
        raise PreemptedError("join", what, "start it again: it takes part in the next start of the training")

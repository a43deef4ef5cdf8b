"""Supervise a training: start its processes, watch them, stop them when asked, and report why it ended early.

    supervise --starts--> trainer.runtime.launcher --starts--> trainer.worker, once for each rank
    supervise --starts--> trainer.worker, if there is one process only

A stop is requested by the file `stop` in the run's folder, so that all ranks leave at the same step. What happens to them
is known from their heartbeats (tasks.training.ranks) and from the launcher's report. However a training ends, none of its
processes stays behind.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from params import BudgetSpentError, EvergreenError, MemoryExhaustedError, PreemptedError
from params.foundation.artifacts import translate_disk_errors, write_text_atomically
from tasks.progress import reset_idle_timer
from tasks.training import causes, machines, processes
from tasks.training.ranks import RankMonitor
from trainer.checkpoints.sealed import FINISHED
from trainer.job import Job
from trainer.loop import sharding
from trainer.loop.batch import micro_batch_and_accumulation
from trainer.reporting import signs_of_life
from trainer.runtime import heartbeat
from trainer.runtime.heartbeat import LOST_PEER, ProcessState
from trainer.runtime.launcher import LaunchFailureReport, RankFailure
from trainer.runtime.lifetime import STOP

logger = logging.getLogger(__name__)

_POLL_S = 0.25
_SAVE_TIME_EVERY_S = 10.0


def supervise_training(job: Job, choose_checkpoint: Callable[[], Path | None], others: Sequence[Path] = ()) -> None:
    """Train `job` to its end, with a smaller micro-batch when memory runs out.

    Args:
        job: the training; its own `checkpoint` is ignored.
        choose_checkpoint: returns the checkpoint to resume from; called before each start.
        others: folders of other trainings that share its budget.

    Raises:
        PreemptedError: SIGTERM or SIGINT came; the error says from which step the next start resumes.
        KeyboardInterrupt: SIGINT came so late that the training is finished.
        BudgetSpentError: the training has taken `launch.max_hours`.
        StalledError: a process made no progress for `launch.stall_timeout_s`.
        KilledError: a process was killed.
        MemoryExhaustedError: memory runs out, however often the micro-batch was halved.
        EvergreenError: any other error that a process reported.
    """
    sharding.check_deepspeed_installed(job.launch)
    halved, budget = 0, TrainingTimeBudget(job, others)
    with translate_disk_errors(job.folder), processes.collect_stop_signals() as signals:
        while True:
            attempt = TrainingAttempt(job.model_copy(update={"checkpoint": choose_checkpoint()}), signals, budget)
            try:
                attempt.run()
            except MemoryExhaustedError:
                key, size = attempt.size_in_use()
                if size == 1 or halved >= job.launch.out_of_memory_retries:
                    raise causes.out_of_memory_error(key, size, halved) from None
                halved += 1
                message = "train: out of memory: launch.%s goes from %d to %d, at the same global batch"
                logger.warning(message, key, size, size // 2)
                launch = job.launch.model_copy(update={key: size // 2})
                job = job.model_copy(update={"launch": launch, "keep_freed_memory": False})
                continue
            except PreemptedError as stopped:
                if signals.first or not budget.is_spent:
                    raise
                raise budget.error(stopped) from None
            if signals.first == signal.SIGINT:  # during its last steps
                raise KeyboardInterrupt("the training is finished\n  start again: it is kept")
            return


class TrainingAttempt:
    """One start of a training's processes, until all of them have ended."""

    def __init__(self, job: Job, signals: processes.ReceivedStopSignals, budget: TrainingTimeBudget) -> None:
        self._job = job
        self._signals = signals
        self._budget = budget
        self._ranks = RankMonitor(job.folder, job.launch.num_processes)
        self._lost: list[ProcessState] = []
        self._killed: set[int] = set()
        self._stop_asked_at: float | None = None
        self._failed_at: float | None = None

    def run(self) -> None:
        """Start the processes and watch them.

        Raises:
            EvergreenError: the reason why the training did not finish.
        """
        job, folder = self._job, self._job.folder
        heartbeat.delete_process_states(folder)
        for path in (folder / STOP, processes.launcher_report_path(job), folder / FINISHED):
            path.unlink(missing_ok=True)
        job_path = folder / "job.json"
        job.save(job_path)
        signs_of_life.note("train: starts its processes")
        with machines.wait_for_machines_and_announce(job, job_path, lambda: bool(self._signals.first)):
            if self._signals.first or self._budget.is_spent:
                raise self._stopped(" before it had started")
            with signs_of_life.show_child_progress(folder / "progress"):
                process = processes.start_processes(job, job_path)
                try:
                    self._watch(process)
                finally:
                    self._budget.save()
                    self._ranks.poll()
                    signs_of_life.note("train: keeps the model")
                    processes.kill_processes(process, self._ranks.local_pids())
            if not (folder / FINISHED).exists():
                raise self._why_ended(process.pid, process.returncode)
        if process.returncode:
            logger.warning("train: finished, although its processes ended with exit status %d", process.returncode)

    def size_in_use(self) -> tuple[str, int]:
        """Return the key of `launch` that set the size of a forward pass when memory ran out, and its value."""
        if any(p.phase == "evaluating" for p in self._ranks.pulses if isinstance(p.error, MemoryExhaustedError)):
            return "eval_batch_size", self._job.launch.eval_batch_size
        return "micro_batch_size", micro_batch_and_accumulation(self._job.training.global_batch_size, self._job.launch)[
            0
        ]

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Return when all processes have ended, or must be ended."""
        while not _ends_within(process, _POLL_S):
            reset_idle_timer()  # the time limit here is that of the ranks
            self._ranks.poll()
            now = time.monotonic()
            if self._signals.first or self._budget.is_spent:
                self._stop(now)
            elif self._is_stalled_at_its_end():
                return
            if self._has_failed_for_good(now):
                return

    def _stop(self, now: float) -> None:
        """Ask for a stop once; then end what takes too long, or what the user does not want to wait for."""
        self._stop_asked_at = self._stop_asked_at or self._ask_to_stop(now)
        grace_s = self._job.launch.grace_s
        if self._signals.is_urgent:
            raise self._stopped(", at once")
        if now - self._stop_asked_at > grace_s:
            raise self._stopped(f", and killed after {grace_s:g} s of grace")

    def _is_stalled_at_its_end(self) -> bool:
        """Whether a process makes no progress although the training is finished; StalledError if it is not finished."""
        stalled = self._ranks.stalled(self._job.launch.stall_timeout_s)
        if stalled and not (self._job.folder / FINISHED).exists():
            raise causes.stalled_ranks_error(stalled)
        return bool(stalled)

    def _has_failed_for_good(self, now: float) -> bool:
        """Whether a rank failed so long ago that nothing else is to be expected; the others are killed before."""
        lost = [pulse for pulse in self._ranks.lost() if not isinstance(pulse.error, PreemptedError)]
        self._lost = self._lost or lost
        if not lost and not self._has_error():
            return False
        self._failed_at = self._failed_at or now
        is_cause_known = any(pulse.phase != LOST_PEER for pulse in lost)  # else, it may be about to end
        if is_cause_known or now - self._failed_at > processes.END_S:
            self._killed |= self._ranks.kill()
        return now - self._failed_at > 2 * processes.END_S

    def _has_error(self) -> bool:
        """Whether a rank has failed; those that were told to stop have not."""
        return any(pulse.error and not isinstance(pulse.error, PreemptedError) for pulse in self._ranks.pulses)

    def _ask_to_stop(self, now: float) -> float:
        """Ask the processes to stop, unless no checkpoint could hold any work yet; return the time."""
        if all(pulse.phase == "starting" for pulse in self._ranks.pulses):
            raise self._stopped(" before its first step")
        (self._job.folder / STOP).touch()
        first, grace_s = self._signals.first, self._job.launch.grace_s
        if first is None:
            logger.info("train: launch.max_hours is spent: stopping with a checkpoint, in at most %g s", grace_s)
            return now
        press = "Ctrl-C again" if first == signal.SIGINT else "Ctrl-C twice"
        logger.info("train: %s: stopping with a checkpoint, in at most %g s; %s: at once", first.name, grace_s, press)
        return now

    def _why_ended(self, pid: int, status: int) -> EvergreenError:
        if processes.needs_launcher(self._job.launch):
            report = LaunchFailureReport.load(processes.launcher_report_path(self._job))
        else:
            report = LaunchFailureReport(failures=(RankFailure(rank=0, pid=pid, exit_code=status),))
        return causes.likeliest_training_error(
            self._job,
            self._ranks.pulses,
            report,
            status,
            lost=self._lost,
            killed_by_us=self._killed,
            signal=self._signals.first,
        )

    def _stopped(self, how: str) -> PreemptedError:
        return causes.stop_requested_error(self._job, self._ranks.pulses, self._signals.first, how)


class TrainingTimeBudget:
    """Counts the time of a training, `launch.max_hours`, over all of its starts on this machine."""

    def __init__(self, job: Job, others: Sequence[Path] = ()) -> None:
        hours = job.launch.max_hours
        self._limit_s = math.inf if hours is None else 3600 * hours
        self._file = job.folder / "seconds"
        self._others_s = sum(_seconds(folder / self._file.name) for folder in others)
        self._before_s = _seconds(self._file)
        self._started = time.monotonic()
        self._saved_s = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether the training must stop. Saves the time now and then: a kill costs at most ten seconds of the count."""
        seconds = time.monotonic() - self._started
        if seconds - self._saved_s > _SAVE_TIME_EVERY_S:
            self.save()
        return self._others_s + self._before_s + seconds >= self._limit_s

    def save(self) -> None:
        """Save the time that all starts have taken."""
        self._saved_s = time.monotonic() - self._started
        write_text_atomically(self._file, f"{self._before_s + self._saved_s:.1f}\n")

    def error(self, stopped: EvergreenError) -> BudgetSpentError:
        """Return the error of a training that had to stop; `stopped` says where it resumes."""
        what = f"budget spent: {self._limit_s / 3600:g} h; {stopped.what.partition('; ')[2]}"
        fix = "raise it, and the next run goes on from there; or ask for fewer steps, which starts a new training"
        return BudgetSpentError.at("launch.max_hours", what, fix)


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def _seconds(file: Path) -> float:
    return float(file.read_text(encoding="utf-8")) if file.exists() else 0.0

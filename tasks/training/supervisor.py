"""Supervise a training: start its processes, watch them, stop them when asked, and say what became of them.

    supervise --start--> trainer.runtime.launcher --start--> trainer.worker, once for each rank

The launcher gets a session of its own, so that neither Ctrl-C nor a signal to the stage's process group reaches the
ranks: they are asked to stop through the file `stop` in the run's folder, and all of them leave at the same step. What is
known of them comes from their heartbeats (tasks.training.ranks) and from the launcher's report. Whatever ends a training, none
of its processes is left behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

import psutil

import params
from params import (
    EvergreenError,
    KilledError,
    MemoryExhaustedError,
    ModelError,
    PreemptedError,
    StalledError,
    TransientError,
)
from params.artifacts import storage_errors
from params.schema import Launch
from tasks.training import rendezvous
from tasks.training.ranks import Ranks, Standstill
from trainer.checkpoints.sealed import newest_step
from trainer.job import Job
from trainer.loop import sharding
from trainer.loop.batch import split_batch
from trainer.runtime import heartbeat
from trainer.runtime.heartbeat import LOST_PEER, Pulse
from trainer.runtime.launcher import REPORT, Failure, LaunchReport
from trainer.runtime.lifetime import SUPERVISOR, die_with_parent
from trainer.worker import STOP

logger = logging.getLogger(__name__)

_POLL_S = 0.25
_REST_S = 5.0
"""How long a process that has said what it failed of may take to end, and a launcher whose processes have all ended."""
_ENDED_BY_OTHERS = (-signal.SIGTERM, -signal.SIGABRT)
"""How the launcher ends the other ranks, and how a collective whose peer is gone may end its own process."""
_REPORT = "launch.json"
_FINISHED = "finished.json"
_GO_ON = "start again: it goes on from its last checkpoint"
_UNSENT = "a kill that nobody sent is mostly the system out of memory: lower launch.micro_batch_size then"


def supervise(job: Job, checkpoint: Callable[[], Path | None]) -> None:
    """Train `job` to its end, with a smaller micro-batch when memory does not suffice.

    Args:
        job: the training; its own `checkpoint` is not looked at.
        checkpoint: says before each start from which checkpoint it goes on.

    Raises:
        PreemptedError: SIGTERM or SIGINT came; the error says from which step the next start goes on.
        StalledError: a process made no progress for `launch.stall_timeout_s`.
        KilledError: a process was killed.
        MemoryExhaustedError: memory does not suffice, however often the micro-batch was halved.
        EvergreenError: whatever else a process says that it failed of.
    """
    sharding.check_installed(job.launch)
    halved = 0
    with storage_errors(job.folder), requests() as asked:
        while True:
            start = Attempt(job.model_copy(update={"checkpoint": checkpoint()}), asked)
            try:
                return start.run()
            except MemoryExhaustedError:
                key, size = start.exhausted()
                if size == 1 or halved >= job.launch.out_of_memory_retries:
                    raise _exhausted(key, size, halved) from None
                halved += 1
                said = "train: out of memory: launch.%s goes from %d to %d, at the same global batch"
                logger.warning(said, key, size, size // 2)
                job = job.model_copy(update={"launch": job.launch.model_copy(update={key: size // 2})})


def launch_command(launch: Launch, job_path: Path, machine: int = 0) -> list[str]:
    """The command that starts the processes of one machine.

    `--multi_gpu` is accelerate's name for starting more than one process; without it, and without a GPU, accelerate
    starts one whatever `--num_processes` says.
    """
    command = [sys.executable, "-m", "trainer.runtime.launcher"]
    if launch.accelerate_config:
        command += ["--config_file", launch.accelerate_config]
    elif launch.num_processes > 1:
        command += ["--multi_gpu"]
    if launch.num_machines > 1:
        command += ["--machine_rank", str(machine), "--main_process_ip", str(launch.main_process_ip)]
    if launch.num_processes > 1 or launch.accelerate_config:
        command += ["--main_process_port", str(launch.main_process_port or 0)]
    command += ["--num_processes", str(launch.num_processes), "--num_machines", str(launch.num_machines)]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    return [*command, "-m", "trainer.worker", str(job_path)]


def start_processes(job: Job, job_path: Path, machine: int = 0) -> subprocess.Popen[bytes]:
    """Start the launcher, which starts the processes of one machine."""
    on_this_machine = job.launch.num_processes // job.launch.num_machines
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // on_this_machine)),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        **rendezvous.environment(job.launch),
        **os.environ,
        SUPERVISOR: str(os.getpid()),
        REPORT: str(report_path(job, machine)),
    }
    return subprocess.Popen(
        launch_command(job.launch, job_path, machine),
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def report_path(job: Job, machine: int = 0) -> Path:
    """Where the launcher of one machine leaves its report."""
    return job.folder / (f"machine-{machine}-{_REPORT}" if machine else _REPORT)


def end_processes(process: subprocess.Popen[bytes], known: Iterable[int] = ()) -> None:
    """Kill whatever is left: launcher, its children, those `known`, and what they started. Each of them leads a session."""
    leaders = {process.pid, *known}
    if process.poll() is None:
        with contextlib.suppress(psutil.Error):
            leaders |= {child.pid for child in psutil.Process(process.pid).children()}
    process.kill()
    process.wait()
    give_up = time.monotonic() + _REST_S
    while left := _members(leaders):
        for member in left:
            with contextlib.suppress(psutil.Error):
                member.kill()
        if time.monotonic() > give_up:
            logger.warning("train: processes %s cannot be ended", ", ".join(str(member.pid) for member in left))
            return
        time.sleep(0.02)


class Requests:
    """What the outside asked of this process by signals."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self._interrupts = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.first = self.first or signal.Signals(number)
        self._interrupts += number == signal.SIGINT

    @property
    def are_impatient(self) -> bool:
        """Whether Ctrl-C was pressed again."""
        return self._interrupts > 1


@contextlib.contextmanager
def requests() -> Iterator[Requests]:
    """Take SIGTERM and SIGINT as requests. Python gives signals to the main thread only; elsewhere there are none."""
    asked = Requests()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Attempt:
    """One start of a training's processes, from nothing to the last of them gone."""

    def __init__(self, job: Job, requests: Requests) -> None:
        self._job = job
        self._folder = job.folder
        self._requests = requests
        self._ranks = Ranks(job.folder, job.launch.num_processes)
        self._lost: list[Pulse] = []
        self._killed: set[int] = set()

    def run(self) -> None:
        """Start, watch, and tell by an error what kept the training from its end."""
        heartbeat.clear(self._folder)
        for name in (STOP, _REPORT, _FINISHED):
            (self._folder / name).unlink(missing_ok=True)
        job_path = self._folder / "job.json"
        self._job.save(job_path)
        with rendezvous.rendezvous(self._job, job_path, lambda: bool(self._requests.first)):
            if self._requests.first:
                raise self._stopped("before it had started")
            process = start_processes(self._job, job_path)
            try:
                self._watch(process)
            finally:
                self._ranks.look()
                end_processes(process, self._ranks.local_pids())
            if not (self._folder / _FINISHED).exists():
                raise next(self._causes(process.returncode))
        if process.returncode:
            logger.warning("train: finished, although the launcher ended with exit status %d", process.returncode)

    def exhausted(self) -> tuple[str, int]:
        """The key of `launch` that sets how much memory was asked for when it did not suffice, and its value."""
        if any(p.phase == "evaluating" for p in self._ranks.pulses if _is(p, MemoryExhaustedError)):
            return "eval_batch_size", self._job.launch.eval_batch_size
        return "micro_batch_size", split_batch(self._job.training.global_batch_size, self._job.launch)[0]

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Return when all processes have ended, or have to."""
        asked_at = failed_at = None
        while not _has_ended(process):
            self._ranks.look()
            now = time.monotonic()
            if self._requests.first:
                asked_at = asked_at or self._ask(now)
                if self._requests.are_impatient:
                    raise self._stopped(", at once")
                if now - asked_at > self._job.launch.grace_s:
                    raise self._stopped(f", and killed after {self._job.launch.grace_s:g} s of grace")
            elif stands := self._ranks.standing_still(self._job.launch.stall_timeout_s):
                if (self._folder / _FINISHED).exists():
                    return
                raise _stalled(stands)
            if self._has_failed():
                failed_at = failed_at or now
                if self._lost or now - failed_at > _REST_S:
                    self._killed |= self._ranks.kill()
                if now - failed_at > 2 * _REST_S:
                    return

    def _ask(self, now: float) -> float:
        """Ask the processes to stop, unless there is nothing yet that a checkpoint would keep; the time of asking."""
        assert self._requests.first
        if all(pulse.phase == "starting" for pulse in self._ranks.pulses):
            raise self._stopped(" before its first step")
        (self._folder / STOP).touch()
        asked, patience = self._requests.first, self._job.launch.grace_s
        press = "Ctrl-C again" if asked == signal.SIGINT else "Ctrl-C twice"
        logger.info("train: %s: stopping with a checkpoint, in at most %g s; %s: at once", asked.name, patience, press)
        return now

    def _has_failed(self) -> bool:
        """Whether the training cannot go on; those who left because they were asked to have not failed."""
        left = [pulse for pulse in self._ranks.lost() if not _is(pulse, PreemptedError)]
        self._lost = self._lost or left
        return bool(left) or any(p.note and not _is(p, PreemptedError) for p in self._ranks.pulses)

    def _causes(self, status: int) -> Iterator[EvergreenError]:
        """Why the training did not come to its end, the likeliest first.

        A process that loses a peer fails too. So the order is: lack of memory; a kill; what a process says that it
        failed of, the first that said so; and only then what may have followed from the end of another.
        """
        report = LaunchReport.load(self._folder / _REPORT)
        pulses = {pulse.rank: pulse for pulse in self._ranks.pulses}
        noted = sorted((p for p in pulses.values() if p.note), key=self._last_word)
        failures = [f for f in report.failures if f.pid not in self._killed]
        killed = [f for f in failures if f.exit_code < 0]
        yield from (_as_error(p, self._job) for p in noted if _is(p, MemoryExhaustedError))
        yield from (_killed(f, pulses.get(f.rank)) for f in killed if f.exit_code not in _ENDED_BY_OTHERS)
        yield from (_as_error(p, self._job) for p in noted if not _is(p, PreemptedError))
        if noted:
            yield self._stopped("")
        yield from self._lost_elsewhere(pulses)
        yield from (_killed(f, pulses.get(f.rank)) for f in killed)
        if status < 0:
            yield KilledError("train", f"its launcher was killed by {_name(-status)}", f"{_GO_ON}; {_UNSENT}")
        said = report.error or f"exit status {status}"
        if not pulses:
            fix = "mend that; launch.accelerate_config, if any, is what the launcher reads beside the recipe"
            yield ModelError(
                "train", f"the trainer did not start: {said}", fix if report.error else "look at the lines above"
            )
        ranks = [str(pulse.rank) for pulse in self._lost] or [str(failure.rank) for failure in failures]
        if any(pulse.phase == LOST_PEER for pulse in pulses.values()):
            what = "the processes lost the connection to each other, and all of them live"
            yield TransientError("train", what, f"look at the network between the machines; {_GO_ON}")
        who = f"rank {', '.join(ranks)}" if ranks else f"its launcher ({said})"
        yield ModelError("train", f"{who} ended early and left no word", "what it wrote stands above")

    def _lost_elsewhere(self, pulses: dict[int, Pulse]) -> Iterator[KilledError]:
        """Those on other machines whose end is known only by its effect: others lost the connection to them."""
        if not any(pulse.phase == LOST_PEER for pulse in pulses.values()):
            return
        lost = []
        for rank in range(self._job.launch.num_processes):
            pulse = pulses.get(rank)
            if pulse is None:
                lost.append(f"rank {rank}")
            elif pulse.host != os.uname().nodename and pulse.phase not in {LOST_PEER, "finished"}:
                lost.append(f"rank {rank} (process {pulse.pid} on {pulse.host}, at step {pulse.step})")
        if lost:
            fix = f"bring the machine back, with `python -m tasks join`; {_GO_ON}"
            yield KilledError(
                "train", f"lost with {'its' if len(lost) == 1 else 'their'} machine: {', '.join(lost)}", fix
            )

    def _last_word(self, pulse: Pulse) -> int:
        return (self._folder / f"rank-{pulse.rank}").stat().st_mtime_ns

    def _stopped(self, how: str) -> PreemptedError:
        asked = self._requests.first.name if self._requests.first else "a request from outside"
        what = f"stopped by {asked}{how}"
        step = newest_step(self._folder)
        reached = max((pulse.step for pulse in self._ranks.pulses), default=step)
        what += f"; its newest checkpoint is of step {step}" if step else "; it has no checkpoint yet"
        if reached > step:
            what += f", and the {reached - step} step(s) after it are repeated"
        never = " once training.resume is `auto`" if self._job.training.resume == "never" else ""
        return PreemptedError("train", what, f"start again: it goes on from step {step}{never}")


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the end of `process`, a short time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
    return process.returncode is not None


def _members(leaders: set[int]) -> list[psutil.Process]:
    """The living processes of the sessions that `leaders` lead."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) in leaders and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _is(pulse: Pulse, kind: type[EvergreenError]) -> bool:
    return pulse.note is not None and pulse.note.type == kind.__name__


def _as_error(pulse: Pulse, job: Job) -> EvergreenError:
    """What a process said that it failed of."""
    assert pulse.note
    kind: type[EvergreenError] = getattr(params, pulse.note.type)
    who = f" (rank {pulse.rank}, process {pulse.pid})" if job.launch.num_processes > 1 else ""
    return kind(pulse.note.where, f"{pulse.note.what}{who}", pulse.note.fix)


def _killed(failure: Failure, pulse: Pulse | None) -> KilledError:
    pid = failure.pid or (pulse.pid if pulse else "unknown")
    when = f"at step {pulse.step}" if pulse else "before it had started"
    what = f"rank {failure.rank} (process {pid}) was killed by {_name(-failure.exit_code)} {when}"
    return KilledError("train", what, f"{_GO_ON}; {_UNSENT}")


def _stalled(stands: list[Standstill]) -> StalledError:
    """The error that names who stands still; whole stacks go into the log."""
    for one in stands:
        if one.stack:
            logger.warning("train: the stacks of rank %d:\n%s", one.rank, one.stack.rstrip())
    fix = "stopped from outside (a debugger, SIGSTOP): start again, it goes on from its last checkpoint"
    if not any(one.is_stopped for one in stands):
        fix = f"{_GO_ON}; if it stands still again, mend what stands at that place, or, if that only takes long, "
        fix += "raise launch.stall_timeout_s"
    return StalledError("train", "; ".join(map(str, stands)), fix)


def _exhausted(key: str, size: int, halved: int) -> MemoryExhaustedError:
    what = f"memory does not suffice for {size} sequence(s) in a forward pass"
    what += f", after it was halved {halved} time(s)" if halved else ""
    fix = "use a smaller model or tokenization.max_length, or set training.gradient_checkpointing"
    if size > 1:
        fix = f"lower launch.{key}, or raise launch.out_of_memory_retries; or {fix}"
    return MemoryExhaustedError(f"launch.{key}", what, fix)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

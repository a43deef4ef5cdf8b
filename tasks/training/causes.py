"""Why a training ended early: one error from what its processes, its launcher and the kernel report."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence, Set
from signal import Signals

from params import (
    EvergreenError,
    InterruptedTrainingError,
    KilledError,
    MemoryExhaustedError,
    ModelError,
    PreemptedError,
    StalledError,
    TransientError,
)
from tasks.training.ranks import StalledRank
from trainer.checkpoints.sealed import newest_checkpoint_step
from trainer.job import Job
from trainer.reporting.log import log_of_training
from trainer.runtime.heartbeat import LOST_PEER, ProcessState
from trainer.runtime.launcher import LaunchFailureReport, RankFailure

logger = logging.getLogger(__name__)

_ENDED_BY_OTHERS = (-Signals.SIGTERM, -Signals.SIGABRT)
"""How the launcher ends the other ranks, and how a collective that lost its peer may end its own process."""
_RESUMES = "start again: it resumes from its last checkpoint"
_OUT_OF_MEMORY = "if you did not send the signal, the system is probably out of memory: lower launch.micro_batch_size"


def likeliest_training_error(
    job: Job,
    pulses: Sequence[ProcessState],
    report: LaunchFailureReport,
    status: int,
    *,
    lost: Sequence[ProcessState],
    killed_by_us: Set[int],
    signal: Signals | None,
) -> EvergreenError:
    """Return the likeliest reason why a training did not finish.

    A process that loses a peer fails too. So the order is: lack of memory; a kill; the first error that a process
    reported; and only then what may have followed from the end of another process. `lost` are the ranks that ended
    before the training did.
    """
    failures = [one for one in report.failures if one.pid not in killed_by_us]
    likeliest = next(_causes(job, pulses, failures, signal), None)
    return likeliest or _unreported(job, pulses, report, status, lost=lost, failures=failures)


def _causes(
    job: Job, pulses: Sequence[ProcessState], failures: Sequence[RankFailure], signal: Signals | None
) -> Iterator[EvergreenError]:
    """Yield what may have ended a training, the likeliest first."""
    by_rank = {pulse.rank: pulse for pulse in pulses}
    killed = [one for one in failures if one.exit_code < 0]
    reported = _reported_errors(job, pulses)
    yield from (error for error in reported if isinstance(error, MemoryExhaustedError))
    yield from (_killed(one, by_rank.get(one.rank)) for one in killed if one.exit_code not in _ENDED_BY_OTHERS)
    yield from (error for error in reported if not isinstance(error, PreemptedError))
    if reported:
        yield stop_requested_error(job, pulses, signal)
    yield from _lost_machines(job, by_rank)
    yield from (_killed(one, by_rank.get(one.rank)) for one in killed)


def _reported_errors(job: Job, pulses: Sequence[ProcessState]) -> list[EvergreenError]:
    """The errors that the ranks reported, in order of time."""
    found = []
    for pulse in sorted(pulses, key=lambda pulse: (job.folder / f"rank-{pulse.rank}").stat().st_mtime_ns):
        who = f" (rank {pulse.rank}, process {pulse.pid})" if job.launch.num_processes > 1 else ""
        if pulse.error:
            found.append(pulse.error.replace(what=f"{pulse.error.what}{who}"))
    return found


def _unreported(
    job: Job,
    pulses: Sequence[ProcessState],
    report: LaunchFailureReport,
    status: int,
    *,
    lost: Sequence[ProcessState],
    failures: list[RankFailure],
) -> EvergreenError:
    if status < 0:
        return KilledError("train", f"its launcher was killed by {_name(-status)}", f"{_RESUMES}; {_OUT_OF_MEMORY}")
    reason, output = report.error or f"exit status {status}", f"see what it printed, and {log_of_training(job.folder)}"
    if not pulses:
        fix = "fix that; the launcher reads launch.accelerate_config, if the recipe names one"
        fix = fix if report.error else output
        return ModelError("train", f"the trainer did not start: {reason}", fix)
    if any(pulse.phase == LOST_PEER for pulse in pulses):
        what = "the processes lost the connection to each other, and all of them live"
        return TransientError("train", what, f"check the network between the machines; {_RESUMES}")
    ranks = [str(one.rank) for one in lost or failures]
    who = f"rank {', '.join(ranks)}" if ranks else f"its launcher ({reason})"
    return ModelError("train", f"{who} exited without reporting an error", output)


def _lost_machines(job: Job, pulses: dict[int, ProcessState]) -> Iterator[KilledError]:
    """Ranks on other machines that others lost the connection to: nothing else shows that they ended."""
    if not any(pulse.phase == LOST_PEER for pulse in pulses.values()):
        return
    lost = []
    for rank in range(job.launch.num_processes):
        pulse = pulses.get(rank)
        if pulse is None:
            lost.append(f"rank {rank}")
        elif pulse.host != os.uname().nodename and pulse.phase not in {LOST_PEER, "finished"}:
            lost.append(f"rank {rank} (process {pulse.pid} on {pulse.host}, at step {pulse.step})")
    if lost:
        what = f"lost with {'its' if len(lost) == 1 else 'their'} machine: {', '.join(lost)}"
        yield KilledError("train", what, f"bring the machine back, with `evergreen join`; {_RESUMES}")


def _killed(failure: RankFailure, pulse: ProcessState | None) -> KilledError:
    pid = failure.pid or (pulse.pid if pulse else "unknown")
    when = f"at step {pulse.step}" if pulse else "before it had started"
    what = f"rank {failure.rank} (process {pid}) was killed by {_name(-failure.exit_code)} {when}"
    return KilledError("train", what, f"{_RESUMES}; {_OUT_OF_MEMORY}")


def stop_requested_error(
    job: Job, pulses: Sequence[ProcessState], signal: Signals | None, how: str = ""
) -> PreemptedError:
    """Return the error of a training that was asked to stop: it says where the next start resumes.

    `signal` is None if another machine, for example, asked us to stop; `how` follows "stopped by SIGTERM".
    """
    what = f"stopped by {signal.name if signal else 'a request from outside'}{how}"
    step = newest_checkpoint_step(job.folder)
    reached = max((pulse.step for pulse in pulses), default=step)
    what += f"; its newest checkpoint is of step {step}" if step else "; it has no checkpoint yet"
    if reached > step:
        what += f", and the {reached - step} step(s) after it are repeated"
    never = " once training.resume is `auto`" if job.training.resume == "never" else ""
    kind = InterruptedTrainingError if signal == Signals.SIGINT else PreemptedError
    return kind("train", what, f"start again: it resumes from step {step}{never}")


def stalled_ranks_error(ranks: Sequence[StalledRank]) -> StalledError:
    """Return the error that names the ranks without progress; their whole stacks go to the log."""
    for rank in ranks:
        if rank.stack:
            logger.warning("train: the stacks of rank %d:\n%s", rank.rank, rank.stack.rstrip())
    fix = "stopped from outside (a debugger, SIGSTOP): start again, it resumes from its last checkpoint"
    if not any(rank.is_stopped for rank in ranks):
        fix = f"{_RESUMES}; if that happens again, fix the code at that line, or, if it is only slow, "
        fix += "raise launch.stall_timeout_s"
    return StalledError("train", "; ".join(map(str, ranks)), fix)


def out_of_memory_error(key: str, size: int, halved: int) -> MemoryExhaustedError:
    """Return the error of a training that needs more memory than there is.

    `key` of `launch` sets `size`, the number of sequences in a forward pass.
    """
    what = f"out of memory with {size} sequence(s) in a forward pass"
    what += f", after halving that {halved} time(s)" if halved else ""
    fix = "use a smaller model or tokenization.max_length, or set training.gradient_checkpointing"
    if size > 1:
        fix = f"lower launch.{key}, or raise launch.out_of_memory_retries; or {fix}"
    return MemoryExhaustedError.at(f"launch.{key}", what, fix)


def _name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"

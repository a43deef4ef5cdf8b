"""One process of a training, started by accelerate: `accelerate launch -m trainer.worker <job.json>`.

It reads the job, builds model and data, goes on from the job's checkpoint if there is one, trains, and leaves in the
job's folder `best-<step>/`, `checkpoint-<step>/` and `finished.json`. It knows neither recipes nor stages.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from params import EvergreenError, MemoryExhaustedError, ModelError, PreemptedError
from trainer.runtime.heartbeat import LOST_PEER, Heartbeat
from trainer.runtime.lifetime import SUPERVISOR, die_with_parent, exclusive

if TYPE_CHECKING:
    from trainer.job import Job
    from trainer.loop.trainer import EvergreenTrainer

logger = logging.getLogger("trainer")
STOP = "stop"
"""File in a run's folder that asks its processes to stop."""
_SHORT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def main(job_path: Path) -> int:
    """Train one job; the return value is the exit status, see params.errors."""
    supervisor = os.environ.get(SUPERVISOR)
    die_with_parent(ancestor=int(supervisor) if supervisor else None)
    from params.artifacts import storage_errors
    from trainer.job import Job
    from trainer.runtime.imports import leave_out_unused

    job = Job.load(job_path)
    rank = int(os.environ.get("RANK", "0"))
    heartbeat = Heartbeat(job.folder, rank)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    logging.basicConfig(level=logging.ERROR if rank else logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("accelerate").setLevel(logging.WARNING)  # it announces every file of a sharded checkpoint
    alone = exclusive(job.folder / "trainer.lock", "a training in this folder", wait_s=30)
    try:
        with alone if rank == 0 else contextlib.nullcontext(), storage_errors(job.folder):
            leave_out_unused(job)
            from trainer.build import build

            trainer = build(job, heartbeat, lambda: bool(asked) or (job.folder / STOP).exists())
            _train(job, trainer)
    except EvergreenError as error:
        heartbeat.fail(error)
        return error.exit_code
    except Exception as error:
        if isinstance(error, MemoryError) or any(sign in str(error) for sign in _SHORT_OF_MEMORY):
            what = f"memory does not suffice: {error}"
            heartbeat.fail(MemoryExhaustedError("launch.micro_batch_size", what, "lower it, or use a smaller model"))
            return MemoryExhaustedError.exit_code
        if _lost_a_peer(error):
            heartbeat.beat(LOST_PEER)
            return os.EX_TEMPFAIL
        heartbeat.fail(ModelError("train", f"{type(error).__name__}: {error}", "its traceback stands above"))
        raise
    heartbeat.beat("finished")
    return os.EX_OK


def _lost_a_peer(error: Exception) -> bool:
    """Whether this process failed only because another one did, which is then the cause."""
    import torch

    said = str(error).lower()
    return isinstance(error, torch.distributed.DistError) or "gloo" in said or "connection closed by peer" in said


def _train(job: Job, trainer: EvergreenTrainer) -> None:
    from transformers import TrainerState

    from trainer.loop import sharding
    from trainer.loop.trainer import is_finished

    sharding.check(trainer, job.checkpoint)
    start = time.monotonic()
    if job.checkpoint and is_finished(job.checkpoint):
        trainer.state = TrainerState.load_from_json(str(job.checkpoint / "trainer_state.json"))
    else:
        trainer.train(resume_from_checkpoint=str(job.checkpoint) if job.checkpoint else None)
    trainer.accelerator.end_training()  # a process group that is still there lets DeepSpeed abort at exit
    step, of = trainer.state.global_step, trainer.state.max_steps
    if trainer.guard.stopped:
        raise PreemptedError(
            "train", f"stopped at step {step} of {of}, as asked", f"start again: checkpoint-{step} goes on"
        )
    if trainer.is_world_process_zero():
        note = {
            "step": step,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "history": trainer.state.log_history,
            "seconds": time.monotonic() - start,
        }
        (job.folder / "finished.json").write_text(json.dumps(note), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""One process of a training, started by accelerate: `accelerate launch -m trainer.worker <job.json>`.

It builds model and data from the job, resumes from the job's checkpoint if there is one, trains, and leaves `best-<step>/`,
`checkpoint-<step>/` and `finished.json` in the job's folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from params import EvergreenError, MemoryExhaustedError, ModelError, PreemptedError
from params.foundation.artifacts import translate_disk_errors, write_text_atomically
from params.foundation.file_lock import hold_file_lock
from trainer.reporting import log, signs_of_life
from trainer.runtime.heartbeat import LOST_PEER, Heartbeat
from trainer.runtime.library_errors import is_lost_peer, is_out_of_memory
from trainer.runtime.lifetime import SUPERVISOR, die_with_parent, listen_for_stop, run_and_end

if TYPE_CHECKING:
    from trainer.job import Job


def main(job_path: Path) -> int:
    """Train one job and return the exit code, see params.foundation.errors."""
    die_with_parent(ancestors=[int(os.environ[SUPERVISOR])] if SUPERVISOR in os.environ else [])
    from trainer.job import Job

    job = Job.load(job_path)
    rank = int(os.environ.get("RANK", "0"))
    heartbeat = Heartbeat(job.folder, rank)
    stop_requested = listen_for_stop(job.folder)
    if rank == 0:
        signs_of_life.start_signs_of_life("train")
    log.log_for_people(logging.ERROR if rank else logging.INFO)
    logging.getLogger("accelerate").setLevel(logging.WARNING)  # at INFO it names every file of a sharded checkpoint
    lock = hold_file_lock(job.folder / "trainer.lock", "a training in this folder", wait_s=30)
    try:
        with (
            log.libraries_print_nothing(),
            log.log_to_file(log.log_of_training(job.folder), rank=rank),
            lock if rank == 0 else contextlib.nullcontext(),
            translate_disk_errors(job.folder),
        ):
            train(job, heartbeat, stop_requested)
    except Exception as error:
        if (exit_code := _report(error, heartbeat)) is None:
            raise
        return exit_code
    finally:
        signs_of_life.hide_progress()
    heartbeat.beat("finished")
    return os.EX_OK


def train(job: Job, heartbeat: Heartbeat, stop_requested: Callable[[], bool]) -> None:
    """Train a job to its end and leave `finished.json`.

    Raises:
        PreemptedError: a stop was requested; there is a checkpoint at its step.
        InputsChangedError: the code is not what it was when the job was planned.
    """
    job.check_code()
    from trainer.runtime.imports import hide_unused_packages, import_losses_without_scipy
    from trainer.runtime.memory import import_without_gc, keep_freed_memory

    if job.keep_freed_memory:
        keep_freed_memory()
    hide_unused_packages(job)  # before transformers is imported
    with import_without_gc():
        import_losses_without_scipy()
        from transformers import TrainerState

        from trainer.build import build_trainer
        from trainer.checkpoints.sealed import FINISHED, ResumePosition
        from trainer.loop import sharding

    signs_of_life.note("train: loads the model and the tokens")
    trainer = build_trainer(job, heartbeat, stop_requested)
    sharding.check_sharding_as_requested(trainer, job.checkpoint)
    start = time.monotonic()
    if job.checkpoint and ResumePosition.load(job.checkpoint).finished:
        trainer.state = TrainerState.load_from_json(str(job.checkpoint / "trainer_state.json"))
    else:
        trainer.train(resume_from_checkpoint=str(job.checkpoint) if job.checkpoint else None)
    trainer.accelerator.end_training()  # DeepSpeed aborts at exit if the process group still exists
    step, last = trainer.state.global_step, trainer.state.max_steps
    if trainer.guard.stopped:
        fix = f"start again to resume from checkpoint-{step}"
        raise PreemptedError("train", f"stopped on request at step {step} of {last}", fix)
    if trainer.is_world_process_zero():
        result = {
            "step": step,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "history": trainer.state.log_history,
            "seconds": time.monotonic() - start,
        }
        write_text_atomically(job.folder / FINISHED, json.dumps(result))


def _report(error: Exception, heartbeat: Heartbeat) -> int | None:
    """Leave an error for the supervisor and return the exit code; None for an error whose traceback should be shown."""
    if isinstance(error, EvergreenError):
        heartbeat.fail(error)
        return error.exit_code
    if is_out_of_memory(error):
        fix = "lower it, or use a smaller model"
        heartbeat.fail(MemoryExhaustedError("launch.micro_batch_size", f"out of memory: {error}", fix))
        return MemoryExhaustedError.exit_code
    if is_lost_peer(error):
        heartbeat.beat(LOST_PEER)
        return os.EX_TEMPFAIL
    heartbeat.fail(ModelError("train", f"{type(error).__name__}: {error}", "see the traceback above"))
    return None


if __name__ == "__main__":
    run_and_end(partial(main, Path(sys.argv[1])))

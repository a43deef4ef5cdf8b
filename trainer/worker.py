"""One process of a training, started by accelerate: `accelerate launch -m trainer.worker <job.json>`.

It reads the job, builds model and data, goes on from the job's checkpoint if there is one, trains, and leaves in the
job's folder `best-<step>/`, `checkpoint-<step>/` and `finished.json`. It knows neither recipes nor stages.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from params import DataError, EvergreenError, ModelError
from trainer.process import SUPERVISOR, die_with_parent

if TYPE_CHECKING:
    from trainer.job import Job

logger = logging.getLogger("trainer")


def main(job_path: Path) -> int:
    """Train one job; the return value is the exit status, see params.errors."""
    supervisor = os.environ.get(SUPERVISOR)
    die_with_parent(ancestor=int(supervisor) if supervisor else None)
    from params.artifacts import storage_errors
    from trainer.job import Job

    job = Job.load(job_path)
    (job.folder / "started").touch()
    leader = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(level=logging.INFO if leader else logging.ERROR, format="%(message)s", stream=sys.stdout)
    try:
        with storage_errors(job.folder):
            _train(job)
    except EvergreenError as error:
        _leave_note(job.folder, error)
        return error.exit_code
    except Exception as error:
        if not _lost_a_peer(error):
            _leave_note(
                job.folder, ModelError("train", f"{type(error).__name__}: {error}", "its traceback stands above")
            )
        raise
    return os.EX_OK


def _leave_note(folder: Path, error: EvergreenError) -> None:
    """Tell the supervisor what went wrong: a launcher's exit status does not. Without a note, a process was killed."""
    note = {"type": type(error).__name__, "where": error.where, "what": error.what, "fix": error.fix}
    (folder / "error.json").write_text(json.dumps(note), encoding="utf-8")


def _lost_a_peer(error: Exception) -> bool:
    """Whether this process failed only because another one did, which is then the cause."""
    import torch

    said = str(error).lower()
    return isinstance(error, torch.distributed.DistError) or "gloo" in said or "connection closed by peer" in said


def _train(job: Job) -> None:
    from transformers import PrinterCallback, TrainerState
    from transformers.utils.logging import disable_progress_bar

    from trainer import arguments, modeling, objectives, tokens
    from trainer.progress import Progress

    disable_progress_bar()
    objective = objectives.build(job.objective)
    state = tokens.read_state(job.tokens)
    tokenizer = tokens.read_tokenizer(job.tokens)
    checkpoint = job.checkpoint
    args = arguments.build(
        folder=job.folder, seed=job.seed, training=job.training, launch=job.launch, resuming=checkpoint is not None
    )
    _check_world(args.world_size, job.launch.num_processes)
    train_dataset = tokens.read_split(job.tokens, "train")
    _check_rows(len(train_dataset), job.training.global_batch_size)
    trainer = objective.trainer_class()(
        objective=objective,
        state=state,
        best_metric=job.training.best_metric,
        keep_checkpoints=job.training.keep_checkpoints,
        lengths=tokens.read_lengths(job.tokens, "train") if job.training.group_by_length else None,
        model=modeling.initial_model(job.model, objective=objective, state=state, tokenizer=tokenizer, seed=job.seed),
        args=args,
        train_dataset=train_dataset,
        eval_dataset=tokens.read_split(job.tokens, "validation"),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Progress())
    if checkpoint:
        logger.info("train: resuming from %s", checkpoint)
    else:
        logger.info("train: no checkpoint of this run, starting at step 0")
    start = time.monotonic()
    reached = TrainerState.load_from_json(str(checkpoint / "trainer_state.json")) if checkpoint else None
    if reached and reached.global_step >= reached.max_steps:
        trainer.state = reached  # Trainer would take one step more
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.is_world_process_zero():
        note = {
            "step": trainer.state.global_step,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "history": trainer.state.log_history,
            "seconds": time.monotonic() - start,
        }
        (job.folder / "finished.json").write_text(json.dumps(note), encoding="utf-8")


def _check_world(found: int, wanted: int) -> None:
    """A launcher that starts fewer processes than it was told to would change the batch without a word."""
    if found != wanted:
        raise ModelError(
            "launch.num_processes",
            f"accelerate started {found} of {wanted} processes",
            "check launch.accelerate_config",
        )


def _check_rows(found: int, global_batch_size: int) -> None:
    """Every epoch is cut to whole global batches: with fewer sequences there would be nothing to train on."""
    if found < global_batch_size:
        what = f"the train split has {found} sequences, fewer than one global batch of {global_batch_size}"
        raise DataError("training.global_batch_size", what, "lower it, or give more rows")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

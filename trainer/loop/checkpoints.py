"""What a Trainer resumes from, and what it writes to resume from: at most one checkpoint a step, complete or not there at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.trainer_utils import IntervalStrategy

from params import CheckpointError
from trainer.checkpoints.position import Position
from trainer.checkpoints.sealed import STAGING


class Checkpoints:
    """The place of a run in its checkpoints: the position that it resumed from, and the step of the newest one.

    `trainer` is an EvergreenTrainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._saved_step = -1
        self._resumed: Position | None = None
        self.staging: str | None = None
        """The folder of the checkpoint that is being written."""

    def resume(self, checkpoint: Path, best: float | None) -> tuple[int, int]:
        """Continue the data of a checkpoint; `best` is the best metric whose weights are still there.

        Returns:
            The epoch, and its micro-batches that are done.

        Raises:
            CheckpointError: the checkpoint does not belong to this run.
        """
        trainer = self._trainer
        self._resumed = position = Position.load(checkpoint)
        try:
            trainer.training_data.load_state_dict({"order": position.order, "stream": position.stream})
        except (ValueError, KeyError, TypeError) as error:
            what = f"its position in the data cannot be used: {error!r}"
            raise CheckpointError(str(checkpoint), what, "resume from another one") from error
        self._saved_step = trainer.state.global_step
        if best is None:  # the best weights are gone: only evaluations from here on count
            trainer.state.best_metric = None
        evaluates = trainer.args.eval_strategy != IntervalStrategy.NO
        trainer.args.eval_on_start = evaluates and (position.lacks_evaluation or best is None)
        return trainer.training_data.epoch, trainer.training_data.micro_batches_done

    def log_line(self) -> tuple[float, int] | None:
        """Return the loss since the last log line and that line's step, which the checkpoint cut short; None at a start."""
        if self._resumed is None:
            return None
        args = self._trainer.args
        return self._resumed.loss_of(args.process_index, args.world_size), self._resumed.last_logged_step

    def save(self, write: Callable[[], None], loss: Callable[[], float], last_logged_step: int) -> None:
        """Let `write` write a checkpoint of this step, unless there is one; `loss` is this process's since the last log line."""
        trainer, step = self._trainer, self._trainer.state.global_step
        if step == self._saved_step:
            return
        trainer.heartbeat.beat("saving", step)
        if trainer.args.should_save:
            trainer.saver.start_checkpoint(step)
        trainer.collectives.barrier()
        self.staging = str(Path(trainer.args.output_dir) / STAGING)
        try:
            write()
        finally:
            self.staging = None
        losses = trainer.collectives.gather(loss())  # waits until every process has written its part
        if trainer.args.should_save:
            trainer.saver.finish_checkpoint(step, self._position(losses, last_logged_step))
        self._saved_step = step

    def _position(self, losses: list[float], last_logged_step: int) -> Position:
        trainer = self._trainer
        ended = trainer.state.global_step >= trainer.state.max_steps
        return Position(
            **trainer.training_data.state_dict(),
            losses=losses,
            last_logged_step=last_logged_step,
            lacks_evaluation=trainer.guard.lacks_evaluation,
            finished=ended or (trainer.control.should_training_stop and not trainer.guard.stopped),
            processes=trainer.args.world_size,
        )

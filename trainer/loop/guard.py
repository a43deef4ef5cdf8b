"""Looks at every optimizer step before it changes the weights, and decides with all processes on saving and stopping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from params import DivergedError

if TYPE_CHECKING:
    from trainer.loop.trainer import EvergreenTrainer


class Guard(TrainerCallback):
    """Stops all processes at the same step, with a checkpoint; and before a step that is not finite, without one.

    Args:
        trainer: the trainer whose steps these are.
        save_minutes: a checkpoint is due after so many minutes, beside every `args.save_steps` steps.
        stop_requested: asked at every step; True on one process stops all of them.
    """

    def __init__(
        self, trainer: EvergreenTrainer, *, save_minutes: float | None, stop_requested: Callable[[], bool]
    ) -> None:
        self._trainer = trainer
        self._save_minutes = save_minutes
        self._stop_requested = stop_requested
        self._saved_at_s = time.monotonic()
        self._is_due, self._stops = False, False
        self.stop_at_step: int | None = None
        """Stop after this step as if asked to."""
        self.stopped = False
        """Whether training ended because it was asked to, before its last step."""
        self.lacks_evaluation = False
        """Whether the evaluation that belongs to the current step was left out, for the next start to make up for."""
        self.micro_losses: list[torch.Tensor] = []
        """Loss of each micro-batch of the current step, on this process."""
        self.gradient_norm: Any = 0.0
        """Norm of the step's gradient, over all processes."""

    @property
    def losses(self) -> list[float]:
        """Loss of each micro-batch of the current step, on this process."""
        return [float(loss) for loss in self.micro_losses]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._trainer.begin()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._trainer.wait_before_fork()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._trainer.saver.check()
        scaled = self._trainer.accelerator.scaler is not None  # fp16: such a step is skipped, and the scale lowered
        norm = float(self.gradient_norm or 0.0)
        diverged = not math.isfinite(sum(self.losses)) or not (scaled or math.isfinite(norm))
        is_due = (
            self._save_minutes is not None
            and args.process_index == 0
            and time.monotonic() - self._saved_at_s >= 60 * self._save_minutes
        )
        stops = self._stop_requested() or state.global_step + 1 == self.stop_at_step
        diverged, self._stops, self._is_due = self._trainer.agreement.any(diverged, stops, is_due)
        if diverged:
            raise self._divergence(norm, state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self.micro_losses = []
        self._trainer.advance()
        self.lacks_evaluation = False
        ends = state.global_step >= state.max_steps
        asked = control.should_save or control.should_training_stop  # by a callback of the recipe
        control.should_save = asked or ends or self._is_due or state.global_step % args.save_steps == 0
        if self._stops and not ends:
            self.lacks_evaluation = control.should_evaluate  # it would take too long for who waits for the end
            control.should_evaluate = False
            control.should_save = control.should_training_stop = self.stopped = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._saved_at_s = time.monotonic()

    def _divergence(self, norm: float, step: int) -> DivergedError:
        """What went wrong, on whatever process; every process raises the same."""
        agreement, rows_here = self._trainer.agreement, self._trainer.rows
        odd = [(loss, rows) for loss, rows in zip(self.losses, rows_here, strict=True) if not math.isfinite(loss)]
        found = [pair for pairs in agreement.gather(odd) for pair in pairs]
        if found:
            said, rows = f"the loss is {found[0][0]}", {row for _, of in found for row in of}
        else:
            said = f"the loss is finite, but the norm of the gradient is {norm}"
            rows = {row for everyones in agreement.gather(rows_here) for of in everyones for row in of}
        newest = self._trainer.saver.newest() if self._trainer.args.process_index == 0 else None
        kept = agreement.gather(newest)[0]
        fix = "lower training.learning_rate, or look at these rows with `evergreen trace`; "
        fix += f"the last checkpoint is {kept.name}" if kept else "there is no checkpoint before it"
        return DivergedError("training", f"{said} at step {step}, rows {sorted(rows)}", fix)

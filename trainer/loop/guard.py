"""Checks every optimizer step, saves nothing of one that is not finite, and decides on saving and stopping for all processes."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from params import DivergedError


class CoordinatedStopGuard(TrainerCallback):
    """Stops all processes at the same step with a checkpoint, or at a step that is not finite without one.

    It saves every `args.save_steps` steps, and after `save_minutes`. It calls `stop_requested` at every step; True on one
    process stops all of them. `trainer` is an EvergreenTrainer.
    """

    def __init__(self, trainer: Any, *, save_minutes: float | None, stop_requested: Callable[[], bool]) -> None:
        self._trainer = trainer
        self._save_s = math.inf if save_minutes is None else 60 * save_minutes
        self._stop_requested = stop_requested
        self._saved_at_s = time.monotonic()
        self._answer: Callable[[], tuple[bool, ...]] = lambda: (False, False, False)
        self.stop_at_step: int | None = None
        """Stop after this step as if a stop were requested."""
        self.stopped = False
        """Whether training stopped on request, before its last step."""
        self.lacks_evaluation = False
        """Whether the evaluation at the current step was skipped, so that the next start has to do it."""
        self.micro_losses: list[torch.Tensor] = []
        """Loss of each micro-batch of the current step, on this process."""
        self.gradient_norm: Any = 0.0
        """Norm of the step's gradient, over all processes."""

    @property
    def losses(self) -> list[float]:
        """Loss of each micro-batch of the current step, on this process."""
        return [float(loss) for loss in self.micro_losses]

    def on_train_begin(self, *_: object, **__: object) -> None:
        self._trainer.on_prepared()

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        self._trainer.wait_before_fork()

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        self._trainer.checkpoints.writer.raise_if_failed()
        scaled = self._trainer.accelerator.scaler is not None  # fp16 skips such a step, and lowers the scale
        norm = float(self.gradient_norm or 0.0)
        has_gradient = scaled or math.isfinite(norm)
        diverged = not has_gradient or not math.isfinite(sum(self.losses))
        is_due = args.process_index == 0 and time.monotonic() - self._saved_at_s >= self._save_s
        stops = self._stop_requested() or state.global_step + 1 == self.stop_at_step
        self._answer = self._trainer.collectives.start_any(diverged, stops, is_due)
        if not has_gradient:  # on all processes: one that waited alone could wait for another that is in the optimizer
            self._agree(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        stops, is_due = self._agree(state.global_step)
        self.micro_losses = []
        self._trainer.training_data.advance()
        self.lacks_evaluation = False
        ends = state.global_step >= state.max_steps
        by_callback = control.should_save or control.should_training_stop
        control.should_save = by_callback or ends or is_due or state.global_step % args.save_steps == 0
        if stops and not ends:
            self.lacks_evaluation = control.should_evaluate  # it would delay the stop
            control.should_evaluate = False
            control.should_save = control.should_training_stop = self.stopped = True

    def on_save(self, *_: object, **__: object) -> None:
        self._saved_at_s = time.monotonic()

    def _agree(self, step: int) -> tuple[bool, bool]:
        """Return whether training stops after this step, and whether a save is due, for any process.

        The answer travels while the optimizer works, as a process that waits for it would slow down short steps. The norm of the
        gradient is the same everywhere: if it is not finite, no process goes on to the optimizer. If only a loss is not, all do, and
        the weights are not saved.

        Raises:
            DivergedError: the step of some process is not finite.
        """
        diverged, stops, is_due = self._answer()
        if diverged:
            raise self._diverged_error(step)
        return stops, is_due

    def _diverged_error(self, step: int) -> DivergedError:
        """Return the error that says which rows of any process had a loss that is not finite, or else those of the whole step."""
        collectives, own_rows = self._trainer.collectives, self._trainer.training_data.rows
        infinite = [(loss, rows) for loss, rows in zip(self.losses, own_rows, strict=True) if not math.isfinite(loss)]
        found = [pair for pairs in collectives.gather(infinite) for pair in pairs]
        if found:
            what, affected = f"the loss is {found[0][0]}", {row for _, rows in found for row in rows}
        else:
            what = f"the loss is finite, but the norm of the gradient is {float(self.gradient_norm or 0.0)}"
            micro_batches = itertools.chain.from_iterable(collectives.gather(own_rows))
            affected = {row for rows in micro_batches for row in rows}
        fix = f"lower training.learning_rate, or look at these rows with `evergreen trace`; {self._last_checkpoint()}"
        return DivergedError("training", f"{what} at step {step}, rows {sorted(affected)}", fix)

    def _last_checkpoint(self) -> str:
        newest = self._trainer.checkpoints.newest() if self._trainer.args.process_index == 0 else None
        kept = self._trainer.collectives.gather(newest)[0]
        return f"the last checkpoint is {kept.name}" if kept else "there is no checkpoint before it"

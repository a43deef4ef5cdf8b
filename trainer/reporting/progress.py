"""The progress of a training: a bar on a terminal, and log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Sized

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer.reporting import progress_bar
from trainer.reporting.metrics_log import CLOCK_SUFFIXES

logger = logging.getLogger(__name__)


def follow_log_level(args: TrainingArguments) -> None:
    """Apply `log_level` and `log_level_replica` to our loggers, as transformers does; `passive` changes nothing."""
    if args.log_level == "passive" and args.should_log:
        return
    level = args.get_process_log_level()
    logging.getLogger().setLevel(max(level, logging.INFO))  # debug lines of other libraries would bury ours
    for ours in ("params", "trainer"):
        logging.getLogger(ours).setLevel(level)


class Progress(TrainerCallback):
    """Shows each step by a bar, or else logs every logging step; logs every evaluation. On the first process only."""

    def __init__(self) -> None:
        self._start_s = self._shown_s = 0.0
        self._start_step = 0
        self._evaluated = 0
        self._has_bar = False
        self._loss = ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._start_s = self._shown_s = time.monotonic()
        self._start_step = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._show(state, "train: steps", state.global_step, state.max_steps, self._loss)

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Sized,
        **_: object,
    ) -> None:
        self._evaluated += 1
        where = f"at step {state.global_step}"
        self._show(state, "train: batches of the validation", self._evaluated, len(eval_dataloader), where)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        progress_bar.hide()

    def _show(self, state: TrainerState, what: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if (
            state.is_world_process_zero
            and now - self._shown_s >= progress_bar.EVERY_S
            and now - self._start_s >= progress_bar.AFTER_S
        ):
            self._shown_s, self._has_bar = now, progress_bar.show(what, done, total, note)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float],
        **_: object,
    ) -> None:
        if not state.is_world_process_zero or "loss" not in logs:
            return
        self._loss = f"loss {logs['loss']:.4f}"
        if self._has_bar:
            return
        step, last = state.global_step, state.max_steps
        left_s = (time.monotonic() - self._start_s) / (step - self._start_step) * (last - step)
        numbers = (step, last, logs["loss"], logs["learning_rate"], left_s)
        logger.info("train: step %d of %d, loss %.4f, learning rate %.2e, %.0f s left", *numbers)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **_: object,
    ) -> None:
        self._evaluated = 0
        if state.is_world_process_zero:
            shown = {k: v for k, v in metrics.items() if not k.endswith(CLOCK_SUFFIXES) and k != "epoch"}
            text = ", ".join(f"{k.removeprefix('eval_')} {v:.4f}" for k, v in shown.items())
            logger.info("train: validation at step %d: %s", state.global_step, text)

"""The progress of a training as log lines."""

from __future__ import annotations

import logging
import time

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer.reporting.clock import CLOCK_SUFFIXES

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
    """Logs every logging step and every evaluation, on the first process only."""

    def __init__(self) -> None:
        self._start_s = 0.0
        self._start_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._start_s = time.monotonic()
        self._start_step = state.global_step

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
        if state.is_world_process_zero:
            shown = {k: v for k, v in metrics.items() if not k.endswith(CLOCK_SUFFIXES) and k != "epoch"}
            text = ", ".join(f"{k.removeprefix('eval_')} {v:.4f}" for k, v in shown.items())
            logger.info("train: validation at step %d: %s", state.global_step, text)

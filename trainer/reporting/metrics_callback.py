"""Writes the metrics of a training as JSON lines while it trains, see trainer.reporting.metrics_log."""

from __future__ import annotations

from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from params.foundation.artifacts import write_text_atomically
from trainer.reporting.metrics_log import FILE, as_lines


class MetricsLog(TrainerCallback):
    """Writes the lines, on the first process only; with `logging_strategy: epoch` it also logs at the end of an epoch.

    Trainer logs the end of an epoch after saving the checkpoint there, which would then lack the line.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if state.is_world_process_zero:
            write_text_atomically(self._path, as_lines(state.log_history))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        is_over = float(state.epoch).is_integer() or state.global_step >= state.max_steps
        if args.logging_strategy == "epoch" and is_over:
            control.should_log = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if args.logging_strategy == "epoch":
            control.should_log = False

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if state.is_world_process_zero:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(as_lines(state.log_history[-1:]))

"""What a training reports while it runs: its progress and metrics, and what each step saw."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from params.foundation.artifacts import write_text_atomically
from trainer.reporting import log, signs_of_life
from trainer.reporting.metrics_log import CLOCK_SUFFIXES, FILE, format_json_lines

logger = logging.getLogger(__name__)


def apply_log_level(args: TrainingArguments) -> None:
    """Apply `log_level` and `log_level_replica` to our loggers, as transformers does; `passive` changes nothing."""
    if args.log_level == "passive" and args.should_log:
        return
    level = args.get_process_log_level()
    logging.getLogger().setLevel(max(level, logging.INFO))  # debug lines of other libraries would bury ours
    log.set_level_for_people(level, level)


class TrainingReporter(TrainerCallback):
    """Shows how far the steps are; logs every evaluation, and for files every logging step; writes the lines of `metrics_log`.

    With `logging_strategy: epoch` it also asks for a line at the last step of an epoch. Trainer logs the end of an epoch after saving
    the checkpoint there, which would then lack the line.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._start_s = 0.0
        self._start_step = 0
        self._evaluated = 0
        self._loss = ""

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._start_s = time.monotonic()
        self._start_step = state.global_step
        if state.is_world_process_zero:
            signs_of_life.note("train: reads the first batches")
            write_text_atomically(self._path, format_json_lines(state.log_history))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        is_over = float(state.epoch).is_integer() or state.global_step >= state.max_steps
        if args.logging_strategy == "epoch" and is_over:
            control.should_log = True
        shown = ("train: steps", state.global_step, state.max_steps, self._loss)
        self._show(state, shown, "train: keeps the last step")

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, **given: Any) -> None:
        self._evaluated += 1
        total, where = len(given["eval_dataloader"]), f"at step {state.global_step}"
        shown = ("train: batches of the validation", self._evaluated, total, where)
        self._show(state, shown, "train: computes metrics")

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if args.logging_strategy == "epoch":
            control.should_log = False

    def on_train_end(self, *_: object, **__: object) -> None:
        signs_of_life.note("train: keeps the model")

    def on_save(self, *_: object, **__: object) -> None:
        signs_of_life.note("train: goes on after a checkpoint")

    def _show(self, state: TrainerState, shown: tuple[str, int, int, str], then: str) -> None:
        _, done, total, _ = shown
        if state.is_world_process_zero and done < total:
            signs_of_life.show_progress(*shown)
        elif state.is_world_process_zero:
            signs_of_life.note(then)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(format_json_lines(state.log_history[-1:]))
        self._loss = f"loss {logs['loss']:.4f}" if "loss" in logs else self._loss
        if "loss" not in logs:
            return
        step, last = state.global_step, state.max_steps
        left_s = (time.monotonic() - self._start_s) / (step - self._start_step) * (last - step)
        numbers = (step, last, logs["loss"], logs["learning_rate"], left_s)
        logger.debug("train: step %d of %d, loss %.4f, learning rate %.2e, %.0f s left", *numbers)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: Any, **_: Any) -> None:
        self._evaluated = 0
        if state.is_world_process_zero:
            signs_of_life.note("train: goes on after the validation")
            shown = {k: v for k, v in metrics.items() if not k.endswith(CLOCK_SUFFIXES) and k != "epoch"}
            text = ", ".join(f"{k.removeprefix('eval_')} {v:.4f}" for k, v in shown.items())
            logger.info("train: validation at step %d: %s", state.global_step, text)


class StepRecorder(TrainerCallback):
    """Writes one JSON line per optimizer step to `steps-<rank>.jsonl` in the run's folder, so that two runs can be compared.

    Every process writes its own. A repeated step has two lines. `observe` returns row ids and losses of the current step's
    micro-batches.
    """

    def __init__(self, folder: Path, rank: int, observe: Callable[[], tuple[list[list[int]], list[float]]]) -> None:
        self._observe = observe
        path = folder / f"steps-{rank}.jsonl"
        is_torn = path.exists() and not path.read_bytes().endswith(b"\n")  # by a kill while the line was written
        self._file = path.open("a", encoding="utf-8")
        self._file.write("\n" if is_torn else "")

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **given: Any) -> None:
        rows, losses = self._observe()
        line = {
            "step": state.global_step + 1,
            "rows": rows,
            "losses": [loss.hex() for loss in losses],
            "learning_rate": float(given["lr_scheduler"].get_last_lr()[0]).hex(),
            "random_state": hashlib.sha256(torch.random.get_rng_state().numpy().tobytes()).hexdigest()[:16],
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

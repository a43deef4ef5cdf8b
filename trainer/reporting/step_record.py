"""A record of what each optimizer step saw, so that two runs can be compared step by step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class StepRecorder(TrainerCallback):
    """Writes one JSON line per optimizer step to `steps-<rank>.jsonl` in the run's folder; a repeated step has two lines.

    `observe` returns row ids and losses of the current step's micro-batches.
    """

    def __init__(self, folder: Path, rank: int, observe: Callable[[], tuple[list[list[int]], list[float]]]) -> None:
        self._observe = observe
        path = folder / f"steps-{rank}.jsonl"
        is_torn = path.exists() and not path.read_bytes().endswith(b"\n")  # by a kill while the line was written
        self._file = path.open("a", encoding="utf-8")
        self._file.write("\n" if is_torn else "")

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        rows, losses = self._observe()
        line = {
            "step": state.global_step + 1,
            "rows": rows,
            "losses": [loss.hex() for loss in losses],
            "learning_rate": float(kwargs["lr_scheduler"].get_last_lr()[0]).hex(),
            "random_state": hashlib.sha256(torch.random.get_rng_state().numpy().tobytes()).hexdigest()[:16],
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

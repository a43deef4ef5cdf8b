"""Write down what each optimizer step saw, so that two runs can be compared step by step."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

if TYPE_CHECKING:
    from trainer.loop.trainer import EvergreenTrainer


class Recorder(TrainerCallback):
    """One JSON line per optimizer step and process, in `steps-<rank>.jsonl`; a step that is repeated has two."""

    def __init__(self, folder: Path, trainer: EvergreenTrainer) -> None:
        self._trainer = trainer
        path = folder / f"steps-{trainer.args.process_index}.jsonl"
        is_torn = path.exists() and not path.read_bytes().endswith(b"\n")  # by a kill while the line was written
        self._file = path.open("a", encoding="utf-8")
        self._file.write("\n" if is_torn else "")

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        line = {
            "step": state.global_step + 1,
            "rows": self._trainer.rows,
            "losses": [loss.hex() for loss in self._trainer.guard.losses],
            "learning_rate": float(self._trainer.lr_scheduler.get_last_lr()[0]).hex(),
            "random_state": hashlib.sha256(torch.random.get_rng_state().numpy().tobytes()).hexdigest()[:16],
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

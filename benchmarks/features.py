"""What a feature costs or gains: seconds per token of a training with it, beside the same training without it.

    python -m benchmarks.features [rounds] [hidden size]

A causal language model of three layers on texts of 16 to 128 tokens. Runs of all features alternate in one process. Tokens are
those of texts, without padding.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model

from benchmarks.tables import environment, print_table, spread
from benchmarks.workload import (
    VOCABULARY,
    StepClock,
    language_model,
    set_up,
    trainer,
)
from params.schema import ObjectiveChoice
from trainer.objectives.bases.texts import packing

BATCH, LENGTH, STEPS, WARM_UP = 8, 128, 20, 4


@dataclass(frozen=True)
class Feature:
    """A change of the training."""

    arguments: dict[str, Any] = field(default_factory=dict)
    """Fields of TrainingArguments."""
    packed: bool = False
    grouped: bool = False
    adapters: bool = False
    frozen_dtype: torch.dtype = torch.float32
    """The type of the weights that adapters leave as they are."""


PLAIN = "none of them"
FEATURES = {
    PLAIN: Feature(),
    "a checkpoint every 4 steps": Feature({"save_steps": 4}),
    "2 loader workers": Feature({"dataloader_num_workers": 2}),
    "grouped by length": Feature(grouped=True),
    "packed, no attention between texts": Feature(packed=True),
    "LoRA on all linear layers": Feature(adapters=True),
    "LoRA, frozen weights in bf16": Feature(adapters=True, frozen_dtype=torch.bfloat16),
    "activation checkpoints": Feature({"activation_checkpointing": True}),
    "bf16 mixed precision": Feature({"bf16": True}),
}


def examples() -> list[dict[str, Any]]:
    """Return texts of random tokens."""
    chance = random.Random(0)
    rows = []
    for i in range(BATCH * STEPS):
        ids = [chance.randrange(VOCABULARY) for _ in range(chance.randint(LENGTH // 8, LENGTH))]
        rows.append({"row_id": i, "input_ids": ids, "labels": ids})
    return rows


def measure(name: str, hidden: int) -> float:
    """Train with one feature; return the mean seconds per 1,000 tokens."""
    feature = FEATURES[name]
    rows = [*packing.pack_examples(examples(), LENGTH)] if feature.packed else examples()
    tokens = sum(len(row["input_ids"]) for row in rows) / len(rows) * BATCH
    model: Any = language_model(hidden, 3)
    if feature.adapters:
        model = get_peft_model(
            model.to(feature.frozen_dtype), LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(
            "ours",
            Path(folder),
            Dataset.from_list(rows),
            model,
            objective=ObjectiveChoice.model_validate({"name": "sft", "packing": feature.packed}),
            group_by_length=feature.grouped,
            max_steps=STEPS if not feature.packed else len(rows) // BATCH,
            per_device_train_batch_size=BATCH,
            **{"save_steps": 10**9, **feature.arguments},
        )
        made.add_callback(clock)
        made.train()
    # A mean: steps with a save or of another length count too.
    seconds = (clock.wall_s[-1] - clock.wall_s[WARM_UP]) / (len(clock.wall_s) - 1 - WARM_UP)
    return 1000 * seconds / tokens


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    hidden = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    print(environment(rounds), flush=True)
    set_up("ours")
    found: dict[str, list[float]] = {name: [] for name in FEATURES}
    for _ in range(rounds):
        for name in FEATURES:
            found[name].append(measure(name, hidden))
    ratios = {name: spread(a / b for a, b in zip(found[name], found[PLAIN], strict=True)) for name in [*FEATURES][1:]}
    print_table(("feature", "time"), ratios.items())
    print(f"\nSeconds per 1,000 tokens with {PLAIN}: {spread(found[PLAIN], 3)}.")


if __name__ == "__main__":
    main()

"""A training that is killed and started again ends with the same bytes as one that was not killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.training import assert_same, run_train_with_kills

VARIANTS: dict[str, dict[str, Any]] = {
    "dropout, packing, log lines across checkpoints": {"training.logging_steps": 5},
    "grouped by length, accumulation, loader workers": {
        "objective.packing": False,
        "training.group_by_length": True,
        "launch.micro_batch_size": 2,
        "launch.dataloader_workers": 2,
        "training.arguments": {"dataloader_persistent_workers": True},
    },
    "epoch boundaries": {"training.max_steps": ..., "training.epochs": 2, "training.global_batch_size": 32},
    "a stream, several passes, a loader worker": {
        "training.streaming": True,
        "training.max_steps": 30,
        "training.save_steps": 9,
        "training.eval_steps": 10,
        "launch.micro_batch_size": 2,
        "launch.dataloader_workers": 1,
    },
    "two processes": {"launch.num_processes": 2, "launch.micro_batch_size": 2},
    "four processes, gradient checkpointing": {
        "launch.num_processes": 4,
        "launch.micro_batch_size": 2,
        "training.gradient_checkpointing": True,
    },
    "masked tokens, others in each epoch, two processes": {
        "objective": {"name": "masked_lm", "whole_words": True},
        "model": tiny.CLASSES["model"],
        "training.max_steps": ...,
        "training.epochs": 3,
        "launch.num_processes": 2,
        "launch.micro_batch_size": 2,
    },
    "early stopping": {"training.learning_rate": 3.0, "training.early_stopping_patience": 3, "training.eval_steps": 2},
}
FINE_TUNED = {"name": "sft", "prompt_column": "text", "completion_column": "label", "packing": True}
VARIANTS["fine-tuning: packed, adapters with dropout, noise on embeddings"] = {
    "objective": FINE_TUNED,
    "tokenization.max_length": 96,
    "training.global_batch_size": 4,
    "training.arguments": {"neftune_noise_alpha": 5.0},
    "launch.micro_batch_size": 2,
    "model.lora": {"r": 4, "dropout": 0.1},
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=() if name == "two processes" else pytest.mark.slow)
        for name, changes in VARIANTS.items()
    ],
)
def test_a_killed_run_ends_like_one_that_was_left_alone(tmp_path: Path, changes: Any) -> None:
    golden, recipe = tiny.tokenized(tmp_path / "golden", tiny.recipe(changes))
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2", "checkpoint.optimizer:1")
    assert_same(golden, killed)


@pytest.mark.slow  # the variants show it in short
def test_a_killed_run_of_texts_to_texts_ends_like_one_that_was_left_alone(tmp_path: Path) -> None:
    """With dropout, which transformers gives a T5 by default."""
    changes = {"launch.micro_batch_size": 4, "objective.max_new_tokens": 4}
    golden, recipe = tiny.tokenized(tmp_path / "golden", tiny.recipe(changes, **tiny.TARGETS))
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    assert_same(golden, killed)

"""Killed anywhere and started again, a training ends with the very bytes of one that was left alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from params import KilledError, Recipe
from params.artifacts import Artifacts
from tasks.training.stage import train
from tests.support import tiny
from trainer.checkpoints.fault_points import KILL_AT

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
TIMES = ("runtime", "per_second")


USUAL = ("grouped by length", "two processes", "fine-tuning")
"""Those that `make test` tries, too."""


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=() if name.startswith(USUAL) else pytest.mark.slow)
        for name, changes in VARIANTS.items()
    ],
)
def test_a_killed_run_ends_like_one_that_was_left_alone(tmp_path: Path, monkeypatch: Any, changes: Any) -> None:
    golden, recipe = tiny.tokenized(tmp_path / "golden", tiny.recipe(changes))
    shutil.copytree(golden.root, tmp_path / "killed")
    killed = Artifacts("tiny", tmp_path / "killed")
    run(golden, recipe)
    for point in ("checkpoint.renamed:2", "checkpoint.optimizer:1"):
        monkeypatch.setenv(KILL_AT, point)
        with pytest.raises(KilledError):
            run(killed, recipe)
    monkeypatch.delenv(KILL_AT)
    run(killed, recipe)
    assert_same(golden, killed)


def run(artifacts: Artifacts, recipe: Recipe) -> None:
    train(
        artifacts,
        seed=recipe.seed,
        objective=recipe.objective,
        model=recipe.model,
        training=recipe.training,
        launch=recipe.launch,
    )


def assert_same(golden: Artifacts, other: Artifacts) -> None:
    """Weights, best weights, optimizer, schedule, random states, place in the data and curves are equal, bit for bit."""
    (weights,) = (path.name for path in golden.checkpoint.glob("*.safetensors"))  # the model's, or its adapters'
    for name in (weights, "optimizer.pt", "scheduler.pt", "position.json"):
        assert same_file(golden.checkpoint / name, other.checkpoint / name), name
    for path in golden.checkpoint.glob("rng_state*.pth"):
        assert same_file(path, other.checkpoint / path.name), path.name
    assert same_file(golden.model / "model.safetensors", other.model / "model.safetensors"), "the best weights"
    assert state(golden.checkpoint) == state(other.checkpoint)
    for curve in ("train.csv", "validation.csv"):
        assert (golden.history / curve).read_text() == (other.history / curve).read_text()


def same_file(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def state(checkpoint: Path) -> dict[str, Any]:
    """The trainer's state without what a clock said."""
    found = json.loads((checkpoint / "trainer_state.json").read_text())
    found["log_history"] = [{k: v for k, v in e.items() if not k.endswith(TIMES)} for e in found["log_history"]]
    return found

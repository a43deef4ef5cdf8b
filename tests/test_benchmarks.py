"""The benchmarks run: a short form of what `python -m benchmarks.<name>` measures."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks.workload import sequences, trainer

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", ["ours", "plain"])
def test_both_trainers_take_the_same_steps_on_the_same_work(tmp_path, kind):
    made = trainer(
        kind,
        tmp_path,
        sequences(8, 16),
        hidden=16,
        layers=1,
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=2,
    )
    made.train()
    assert made.state.global_step == 2
    assert len(made.stalls_s) == 2
    assert made.first_step_s > 0.0


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_can_be_imported(path):
    module = importlib.import_module(f"benchmarks.{path.stem}")
    assert module.__doc__
    if path.stem != "workload":
        assert path.stem in module.__doc__  # the command that runs it

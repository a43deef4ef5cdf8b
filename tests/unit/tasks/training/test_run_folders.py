"""Which run folders stay after a finished training."""

from __future__ import annotations

import os

from params import load
from params.artifacts import Artifacts
from tasks.training.run_folders import prune_superseded, superseded
from tests.support import tiny
from tests.support.training import run_train


def make_runs(artifacts: Artifacts, *names: str) -> None:
    """Folders of interrupted runs, the oldest first, all older than now."""
    for age, name in enumerate(reversed(names), start=1):
        folder = artifacts.checkpoints / name
        (folder / "checkpoint-2").mkdir(parents=True)
        os.utime(folder, (1e9 - age, 1e9 - age))


def names(artifacts: Artifacts) -> set[str]:
    return {path.name for path in artifacts.checkpoints.iterdir()}


def test_newest_run_and_the_one_before_it_stay(tmp_path):
    artifacts = Artifacts("tiny", tmp_path)
    assert superseded(artifacts) == []
    prune_superseded(artifacts)
    make_runs(artifacts, "a" * 16, "b" * 16, "0" * 16)
    assert [path.name for path in superseded(artifacts)] == ["b" * 16, "a" * 16]
    prune_superseded(artifacts)
    assert names(artifacts) == {"b" * 16, "0" * 16}


def test_finished_training_prunes_superseded_runs(tmp_path):
    artifacts, _ = tiny.tokenized(tmp_path, tiny.recipe({"training.max_steps": 2}))
    make_runs(artifacts, "a" * 16, "b" * 16)
    report = run_train(artifacts, load(artifacts.recipe_path))
    assert names(artifacts) - {report.run} == {"b" * 16}

"""Which run folders stay after a finished training."""

from __future__ import annotations

import os

from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.training.run_folders import (
    delete_superseded_run_folders,
    list_superseded_run_folders,
    mark_runs_as_last_started,
)
from tests.support import tiny
from tests.support.training import run_train


def make_runs(artifacts: Artifacts, *names: str) -> None:
    """Folders of interrupted runs, the oldest first. Their times say the opposite, and lie ahead."""
    for age, name in enumerate(names, start=1):
        folder = artifacts.checkpoints / name
        (folder / "checkpoint-2").mkdir(parents=True)
        mark_runs_as_last_started(artifacts, [name])
        os.utime(folder, (4e9 - age, 4e9 - age))


def names(artifacts: Artifacts) -> set[str]:
    return {path.name for path in artifacts.checkpoints.iterdir()}


def test_newest_run_and_the_one_before_it_stay(tmp_path):
    artifacts = Artifacts("tiny", tmp_path)
    assert list_superseded_run_folders(artifacts) == []
    delete_superseded_run_folders(artifacts)
    make_runs(artifacts, "a" * 16, "b" * 16, "0" * 16)
    assert [path.name for path in list_superseded_run_folders(artifacts)] == ["b" * 16, "a" * 16]
    delete_superseded_run_folders(artifacts)
    assert names(artifacts) == {"b" * 16, "0" * 16}


def test_finished_training_prunes_superseded_runs(tmp_path):
    artifacts, _ = tiny.tokenized(tmp_path, tiny.recipe({"training.max_steps": 2}))
    make_runs(artifacts, "a" * 16, "b" * 16)
    report = run_train(artifacts, load(artifacts.recipe_path))
    assert names(artifacts) - {report.run} == {"b" * 16}


def test_run_that_is_continued_is_the_last_one(tmp_path):
    artifacts = Artifacts("tiny", tmp_path)
    make_runs(artifacts, "a" * 16, "b" * 16)
    mark_runs_as_last_started(artifacts, ["a" * 16])
    assert [path.name for path in list_superseded_run_folders(artifacts)] == ["b" * 16]


def test_runs_of_an_earlier_version_are_older_and_in_the_order_of_their_times(tmp_path):
    artifacts = Artifacts("tiny", tmp_path)
    for name, time in (("a", 4e9), ("b", 4e9 - 1)):
        (artifacts.checkpoints / name).mkdir(parents=True)
        os.utime(artifacts.checkpoints / name, (time, time))
    make_runs(artifacts, "c")
    assert [path.name for path in list_superseded_run_folders(artifacts, keep=0)] == ["c", "a", "b"]

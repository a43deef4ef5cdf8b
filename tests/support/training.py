"""The train stage in a test: run it, kill it, change the number of processes, and compare what it leaves."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from params import KilledError, PreemptedError, Recipe
from params.foundation.artifacts import Artifacts
from tasks.stage_run import stage_arguments_from_recipe
from tasks.training.report import TrainingReport
from tasks.training.stage import train
from tasks.training.supervisor import supervise_training
from tests.support import forked, tiny
from trainer.checkpoints.resume import prepare_resume
from trainer.checkpoints.sealed import KILL_AT, list_checkpoints
from trainer.identity import run_identity
from trainer.job import Job
from trainer.start import start_model_folder

TIMES = ("runtime", "per_second")
"""Endings of the values in a log that depend on the clock."""


_SHORT: dict[str, Any] = {
    "objective.packing": False,  # so that a row is one sequence
    "training.max_steps": 10,
    "training.save_steps": 3,
    "launch.micro_batch_size": 2,
    "launch.dataloader_workers": 1,  # which has read ahead when the training is stopped
    "model.config.attention_dropout": 0.0,  # its masks depend on the micro-batch
}


def run_train(artifacts: Artifacts, recipe: Recipe) -> TrainingReport:
    """The train stage of a recipe, with forked ranks."""
    with forked.ranks():
        return train(artifacts, **stage_arguments_from_recipe("train", recipe))


def plan_job(artifacts: Artifacts, recipe: Recipe, *, stop_at_step: int | None = None) -> Job:
    """The job that the train stage would run."""
    return Job.of(recipe, artifacts).model_copy(update={"stop_at_step": stop_at_step})


def run_train_with_kills(golden: Artifacts, recipe: Recipe, *fault_points: str) -> Artifacts:
    """Train one project without interruption, and a copy of it that is killed at each of the fault points.

    Returns:
        The copy, after a last start that trained to the end.
    """
    killed = Artifacts("tiny", golden.root.with_name("killed"))
    shutil.copytree(golden.root, killed.root)
    run_train(golden, recipe)
    with pytest.MonkeyPatch.context() as environment:
        for point in fault_points:
            environment.setenv(KILL_AT, point)
            with pytest.raises(KilledError):
                run_train(killed, recipe)
    run_train(killed, recipe)
    return killed


def curve(artifacts: Artifacts, split: str) -> list[dict[str, float]]:
    """The rows of train.csv or validation.csv, without empty cells."""
    with (artifacts.history / f"{split}.csv").open(encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def metrics_log(artifacts: Artifacts) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (artifacts.history / "metrics.jsonl").read_text().splitlines()]


def assert_same(golden: Artifacts, other: Artifacts) -> None:
    """Weights, best weights, optimizer, scheduler, random states, data position and curves are equal, bit for bit."""
    (weights,) = (path.name for path in golden.checkpoint.glob("*.safetensors"))  # the model's, or its adapters'
    for name in (weights, "optimizer.pt", "scheduler.pt", "position.json"):
        assert _same_file(golden.checkpoint / name, other.checkpoint / name), name
    for path in golden.checkpoint.glob("rng_state*.pth"):
        assert _same_file(path, other.checkpoint / path.name), path.name
    assert _same_file(golden.model / "model.safetensors", other.model / "model.safetensors"), "the best weights"
    assert _same_file(golden.model / "config.json", other.model / "config.json")
    assert state_without_times(golden.checkpoint) == state_without_times(other.checkpoint)
    for curve in ("train.csv", "validation.csv"):
        assert (golden.history / curve).read_text() == (other.history / curve).read_text()


def state_without_times(checkpoint: Path) -> dict[str, Any]:
    """The Trainer's state, without the values that depend on the clock."""
    found: dict[str, Any] = json.loads((checkpoint / "trainer_state.json").read_text())
    found["log_history"] = [{k: v for k, v in e.items() if not k.endswith(TIMES)} for e in found["log_history"]]
    return found


def _same_file(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


class ElasticTraining:
    """One training that records its steps, started as often and on as many processes as a test likes."""

    def __init__(self, root: Path, changes: dict[str, Any]) -> None:
        self.artifacts, self.recipe = tiny.tokenized(root, tiny.recipe(_SHORT | changes))
        self.folder = root / "run"

    def start(self, processes: int = 1, until: int | None = None) -> None:
        """Train to the end, or to a step."""
        made = self.job(processes, until)
        choice = partial(prepare_resume, made.folder, made.identity, made.training.resume)
        with forked.ranks():
            if until is None:
                supervise_training(made, choice)
                return
            with pytest.raises(PreemptedError, match=f"of step {until}"):
                supervise_training(made, choice)

    def job(self, processes: int, until: int | None) -> Job:
        sections = {name: getattr(self.recipe, name) for name in ("seed", "objective", "model", "training")}
        launch = self.recipe.launch.model_copy(update={"num_processes": processes})
        tokens = self.artifacts.tokens
        start = start_model_folder(self.artifacts, self.recipe.model.start)
        identity = run_identity(tokens, sections, start=start)
        places = {"tokens": tokens, "folder": self.folder, "identity": identity, "start": start}
        return Job(**sections, **places, launch=launch, stop_at_step=until, record=True)

    def steps(self) -> dict[int, dict[str, Any]]:
        """Rows, summed loss and learning rate of each step, over all processes."""
        by_step: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for rank, line in self.lines():
            by_step.setdefault(line["step"], []).append((rank, line))
        by_rank = {step: sorted(lines, key=lambda pair: pair[0]) for step, lines in by_step.items()}
        return {step: _merge_ranks([line for _, line in lines]) for step, lines in by_rank.items()}

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The recorded lines of all processes, each with its rank."""
        for path in self.folder.glob("steps-*.jsonl"):
            for line in path.read_text().splitlines():
                yield int(path.stem.removeprefix("steps-")), json.loads(line)

    def history(self) -> list[dict[str, Any]]:
        """The Trainer's log of a finished training."""
        found: list[dict[str, Any]] = json.loads((self.folder / "finished.json").read_text())["history"]
        return found

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint."""
        return list_checkpoints(self.folder)[0]


def _merge_ranks(lines: list[dict[str, Any]]) -> dict[str, Any]:
    micro_batches = [rows for turn in zip(*(line["rows"] for line in lines), strict=True) for rows in turn]
    return {
        "rows": [row for rows in micro_batches for row in rows],
        "loss": sum(float.fromhex(loss) for line in lines for loss in line["losses"]) / len(lines),
        "learning_rate": {line["learning_rate"] for line in lines},
    }

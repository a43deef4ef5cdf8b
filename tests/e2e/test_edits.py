"""The recipe and the code are edited while a stage runs: dvc.lock and a release say only what ran."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.project import Project, wait_for

SLOWER = "max_steps: 400"
EDITS: dict[str, Callable[[Project], None]] = {
    "recipe": lambda project: project.edit("params/tiny.yaml", "learning_rate: 1e-2", "learning_rate: 3e-2"),
    "code": lambda project: project.edit("trainer/losses.py", '"""', '"""Edited. '),
}


def entry(project: Project, stage: str) -> dict:
    """What dvc.lock records of a stage; empty if nothing."""
    path = project.root / "dvc.lock"
    return YAML(typ="safe").load(path).get("stages", {}).get(f"{stage}@tiny", {}) if path.exists() else {}


def train_until_the_first_checkpoint(project: Project, *command: str) -> subprocess.Popen[bytes]:
    project.edit("params/tiny.yaml", "max_steps: 20", SLOWER)
    process = project.start(*command, log="run.log", fork=True)
    wait_for(lambda: checkpoints(project) or process.poll() is not None, "a checkpoint", 240)
    return process


def checkpoints(project: Project) -> list[Path]:
    return list((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))


@pytest.mark.slow
@pytest.mark.parametrize("edit", ["recipe", "code"])
def test_edit_during_a_training_ends_it_with_an_error_and_undoing_it_restores_the_work(
    project: Project, edit: str
) -> None:
    dvc = train_until_the_first_checkpoint(project, "dvc", "repro", "train@tiny")
    path = project.root / {"recipe": "params/tiny.yaml", "code": "trainer/losses.py"}[edit]
    before = path.read_bytes()
    EDITS[edit](project)
    assert dvc.wait(240) != 0
    log = (project.root / "run.log").read_text()
    assert "InputsChangedError: train@tiny: changed while it ran: " in log
    assert entry(project, "train") == {}

    path.write_bytes(before)
    log = project.run("dvc", "repro", "train@tiny")
    assert "has finished before" in log
    assert "step" not in log.split("has finished before")[0].split("train: params")[1]
    assert entry(project, "train")["params"]["runs/tiny/recipe.yaml"]["training"]["learning_rate"] == 0.01


@pytest.mark.slow
def test_flow_whose_recipe_is_edited_starts_again_and_publishes_what_the_recipe_says(project: Project) -> None:
    flow = train_until_the_first_checkpoint(project, "python", "-m", "flows.cli", "run", "tiny")
    project.edit("params/tiny.yaml", SLOWER, "max_steps: 10")
    project.edit("params/tiny.yaml", "vocab_size: 300", "vocab_size: 310")
    assert flow.wait(400) == 0, (project.root / "run.log").read_text()
    assert "changed while it ran: training in params/tiny.yaml" in (project.root / "run.log").read_text()
    assert project.json("runs/tiny/history/training.json")["steps"] == 10
    assert (
        entry(project, "tokenize")["params"]["runs/tiny/recipe.yaml"]["tokenization"]["tokenizer"]["vocab_size"] == 310
    )
    assert project.repro() == []


def test_evaluation_and_release_refuse_the_model_of_another_recipe(project: Project) -> None:
    project.stages("params/tiny.yaml", ("ingest", "validate", "tokenize", "train", "evaluate"))
    EDITS["recipe"](project)
    for stage in ("evaluate", "publish"):
        out = project.run("python", "-m", "tasks", stage, "tiny", ok=False)
        assert "InputsChangedError: runs/tiny/history/training.json: the model is that of run" in out
    assert not (project.root / "runs/tiny/release/receipt.json").exists()


@pytest.mark.slow
def test_release_refuses_stages_that_ran_before_an_edit(project: Project) -> None:
    project.run("dvc", "repro", "evaluate@tiny")
    project.edit("params/tiny.yaml", "max_quarantined: 0.05", "max_quarantined: 0.06")
    out = project.run("dvc", "repro", "-s", "publish@tiny", ok=False)
    assert "InputsChangedError: validate@tiny: changed since it ran: validation" in out
    assert not (project.root / "runs/tiny/release/receipt.json").exists()
    project.run("dvc", "repro")
    assert project.json("runs/tiny/release/receipt.json")["status"] == "published"

"""`evergreen new` as a user calls it, in a project that already has a recipe: then the recipe is checked, and removed again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.e2e.test_objectives import questions
from tests.support import forked
from tests.support.pretrained import write_model
from tests.support.project import Project
from tests.support.terminal import terminal


def state(project: Project) -> dict[str, bytes]:
    """The files that the commands may change."""
    paths = [*project.root.glob("params/*.yaml"), project.root / "recipes.yaml", project.root / "prefect.yaml"]
    return {path.name: path.read_bytes() for path in paths}


def test_from_a_file_to_a_checked_recipe_and_back(project: Project, tmp_path: Path) -> None:
    pd.DataFrame(questions(400)).to_csv(project.root / "data/questions.csv", index=False)
    model = str(write_model(tmp_path / "model"))
    before = state(project)
    command = ("python", "-m", "flows.cli", "new", "topics", "--data", "data/questions.csv")

    output = project.run(*command, ok=False)
    assert "--model: is needed" in output
    assert state(project) == before

    output = project.run(*command, "--model", model, "--schedule", "0 4 * * *", "--yes")
    assert "learn one label per text (sequence_classification)" in output
    assert "evergreen rehearse topics" in output
    assert "is sound" in project.run("python", "-m", "flows.cli", "check", "topics")
    assert "ingest@topics" in project.run("dvc", "stage", "list", "--all")
    written = state(project)
    assert set(written) - set(before) == {"topics.yaml"}
    assert "Nothing to do" in project.run(*command, "--model", model, "--schedule", "0 4 * * *", "--yes")
    assert state(project) == written

    assert "add --yes" in project.run("python", "-m", "flows.cli", "remove", "topics")
    assert state(project) == written
    project.run("python", "-m", "flows.cli", "remove", "topics", "--yes")
    assert state(project) == before


def test_on_a_terminal_it_asks(project: Project, tmp_path: Path) -> None:
    rows = "".join(f"what about number {i}?,{'ab'[i % 2]},{'xyz'[i % 3]}\n" for i in range(120))
    (project.root / "data" / "two.csv").write_text(f"question,team,urgency\n{rows}")
    model = str(write_model(tmp_path / "model"))
    command = ("python", "-m", "tasks", "new", "two", "--data", "data/two.csv")
    with terminal(*command, folder=project.root, environment=forked.commands(project.environment)) as seen:
        for question, answer in {"Which model": model, "Which one? --label": "urgency"}.items():
            seen.wait_for(question)
            seen.type(f"{answer}\n")
        assert seen.end() == 0, seen.output
    assert "label: column `urgency`" in seen.output
    assert "label_column: urgency" in (project.root / "params/two.yaml").read_text()


@pytest.mark.slow
def test_libraries_that_it_does_not_need_write_nothing(project: Project, tmp_path: Path) -> None:
    """transformers imports torchao where it is installed, which says what it failed to load."""
    pd.DataFrame(questions(400)).to_csv(project.root / "data/questions.csv", index=False)
    model = str(write_model(tmp_path / "model"))
    command = [
        sys.executable,
        "-m",
        "tasks",
        "new",
        "topics",
        "--data",
        "data/questions.csv",
        "--model",
        model,
        "--yes",
    ]
    environment = {**project.environment, "PYTHONPATH": str(project.root)}
    done = subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("topics: learn one label per text")
    assert "torchao" not in done.stderr, done.stderr


@pytest.mark.slow
def test_what_new_proposes_runs(project: Project, tmp_path: Path) -> None:
    """All stages, with the recipe as it was written."""
    pd.DataFrame(questions(400)).to_csv(project.root / "data/questions.csv", index=False)
    project.run("python", "-m", "tasks", "new", "topics", "--data", "data/questions.csv", "--model", "new", "--yes")
    project.stages("topics")
    assert project.json("runs/topics/evaluation/metrics.json")["model"]["accuracy"] > 0.9
    assert project.json("runs/topics/release/receipt.json")["status"] == "published"

"""`evergreen new` as a user calls it, in a project that already has a recipe: then the recipe is checked, and removed again."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.test_classification import write_questions
from tests.support.pretrained import write_model
from tests.support.project import Project


def state(project: Project) -> dict[str, bytes]:
    """The files that the commands may change."""
    paths = [*project.root.glob("params/*.yaml"), project.root / "dvc.yaml", project.root / "prefect.yaml"]
    return {path.name: path.read_bytes() for path in paths}


def answered(project: Project, *command: str, answers: dict[str, str], timeout_s: float = 120) -> str:
    """The output of a command on a terminal where somebody answers questions."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, cwd=project.root, env=project.environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    output, left, end = "", dict(answers), time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not select.select([ours], [], [], 1.0)[0]:
            continue
        try:
            output += os.read(ours, 4096).decode(errors="replace")
        except OSError:  # the terminal is closed
            break
        for question in [q for q in left if q in output]:
            os.write(ours, f"{left.pop(question)}\n".encode())
    os.close(ours)
    assert process.wait(10) == 0, output
    assert left == {}, output
    return output


def test_from_a_file_to_a_checked_recipe_and_back(project: Project, tmp_path: Path) -> None:
    write_questions(project.root / "data" / "questions.csv", 400)
    model = str(write_model(tmp_path / "model"))
    before = state(project)
    command = ("python", "-m", "flows.cli", "new", "topics", "--data", "data/questions.csv")

    output = project.run(*command, ok=False)
    assert "--model: is needed" in output
    assert state(project) == before

    output = project.run(*command, "--model", model, "--schedule", "0 4 * * *", "--yes")
    assert "learn one label per text (sequence_classification)" in output
    assert "A run here:" in output
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
    answers = {"Which model": model, "Which one? --label": "urgency"}
    output = answered(project, "python", "-m", "tasks", "new", "two", "--data", "data/two.csv", answers=answers)
    assert "label: column `urgency`" in output
    assert "label_column: urgency" in (project.root / "params/two.yaml").read_text()


@pytest.mark.slow
def test_what_new_proposes_runs(project: Project, tmp_path: Path) -> None:
    """All stages, with the recipe as it was written."""
    write_questions(project.root / "data" / "questions.csv", 400)
    project.run("python", "-m", "tasks", "new", "topics", "--data", "data/questions.csv", "--model", "new", "--yes")
    project.stages("topics")
    assert project.json("runs/topics/evaluation/metrics.json")["model"]["accuracy"] > 0.9
    assert project.json("runs/topics/release/receipt.json")["status"] == "published"

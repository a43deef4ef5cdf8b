"""Code is edited between a kill and the next start: only what decides the weights makes the run start again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.project import Project, wait_for

BEFORE_TRAINING = ("ingest", "validate", "tokenize")


@pytest.mark.slow
def test_only_an_edit_of_code_that_decides_the_weights_starts_a_run_again(project: Project) -> None:
    project.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 2000")
    project.stages("params/tiny.yaml", BEFORE_TRAINING)
    train_until_a_new_checkpoint_and_kill(project, "first.log")

    append_comment(project.root / "trainer/runtime/heartbeat.py")
    assert "resumes at step" in train_until_a_new_checkpoint_and_kill(project, "second.log")

    append_comment(project.root / "trainer/data/order.py")
    log = train_until_a_new_checkpoint_and_kill(project, "third.log")
    assert "starts at step 0" in log
    assert "is of another run (code trainer/data/order.py has changed)" in log


def train_until_a_new_checkpoint_and_kill(project: Project, log: str) -> str:
    """What the training logged until SIGKILL."""
    known = checkpoints(project)
    stage = project.start("python", "-m", "tasks", "train", "params/tiny.yaml", log=log, fork=True)
    wait_for(lambda: checkpoints(project) - known or stage.poll() is not None, "a checkpoint", 120)
    stage.kill()
    wait_for(lambda: not project.processes("trainer"), "the end of the trainer", 10)
    return (project.root / log).read_text()


def checkpoints(project: Project) -> set[Path]:
    return set((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))


def append_comment(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")

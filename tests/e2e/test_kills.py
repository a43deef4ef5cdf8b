"""Kill -9 at whatever runs the training: nothing of it stays behind, and the next start goes on from a checkpoint."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from params.foundation.artifacts import SPLITS
from tests.support.project import Project, wait_for


@pytest.mark.slow
def test_a_killed_flow_and_a_killed_dvc_leave_nothing_running(project: Project) -> None:
    project.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 200")

    flow = project.start("python", "-m", "flows.cli", "run", "tiny", log="flow.log")
    wait_for(lambda: checkpoints(project), "a checkpoint", 120)
    assert project.processes("trainer.worker")
    ids = [process.pid for process in project.processes()]
    flow.kill()
    wait_for(lambda: not project.processes(), "the end of all processes, the server too", 10)
    flow.wait()
    # DVC takes a dead process that the system has not yet forgotten for a living owner of its locks.
    wait_for(lambda: not any(psutil.pid_exists(i) for i in ids), "the system to forget them", 30)

    known = set(checkpoints(project))
    dvc = project.start("dvc", "repro", "train@tiny", log="dvc.log")
    wait_for(lambda: set(checkpoints(project)) - known, "another checkpoint", 120)
    assert "resumes at step" in (project.root / "dvc.log").read_text()
    dvc.kill()
    wait_for(lambda: not project.processes("tasks"), "the end of the stage", 10)
    wait_for(lambda: not project.processes("trainer"), "the end of the trainer", 10)

    out = project.run("python", "-m", "flows.cli", "run", "tiny")
    assert "resumes at step" in out
    assert "published: tests/tiny" in out
    assert project.repro() == []


@pytest.mark.slow
def test_a_flow_that_is_told_to_stop_ends_its_trainer(project: Project) -> None:
    project.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 200")
    flow = project.start("python", "-m", "flows.cli", "run", "tiny", log="flow.log")
    wait_for(lambda: checkpoints(project), "a checkpoint", 120)
    flow.send_signal(signal.SIGTERM)
    flow.wait(60)
    wait_for(lambda: not project.processes(), "the end of all processes", 10)
    assert flow.returncode != 0


@pytest.mark.slow
def test_a_dvc_that_is_killed_before_it_records_a_training_loses_nothing(project: Project) -> None:
    project.run("dvc", "repro", "tokenize@tiny")
    dvc = project.start("dvc", "repro", "train@tiny", log="dvc.log")
    report = project.root / "runs/tiny/history/training.json"
    wait_for(report.exists, "the artifacts of the training", 240, every_s=0.002)
    dvc.kill()
    dvc.wait()
    assert "train@tiny" not in (project.root / "dvc.lock").read_text()
    first = report.read_bytes()

    out = project.run("dvc", "repro", "train@tiny")
    assert "has finished before" in out
    assert report.read_bytes() == first
    assert "train@tiny" in (project.root / "dvc.lock").read_text()
    project.run("dvc", "repro", "evaluate@tiny")
    assert not checkpoints(project), "once recorded, the run's folder is deleted"


@pytest.mark.parametrize(
    "delay_s", [0.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.01, 0.03, 0.1, 0.3, 0.6))]
)
def test_a_stage_whose_dvc_is_killed_at_once_ends(project: Project, delay_s: float) -> None:
    dvc = project.start("dvc", "repro", "ingest@tiny", log="dvc.log")
    stage = ("-m", "tasks", "ingest")
    wait_for(lambda: project.processes(*stage), "the stage", 120, every_s=0.002)
    time.sleep(delay_s)
    dvc.kill()
    dvc.wait()
    wait_for(lambda: not project.processes(*stage), "the end of the stage", 5)
    raw = project.root / "runs/tiny/raw"
    if raw.exists():
        assert delay_s > 0.1, "only a stage that had the time to end leaves it"
        assert {path.name for path in raw.iterdir()} == {"source.json", *SPLITS}


def checkpoints(project: Project) -> list[Path]:
    return list((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))

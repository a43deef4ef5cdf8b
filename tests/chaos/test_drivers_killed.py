"""Kill only the flow, only dvc, only the stage, one after the other: the run ends with the bytes of one left alone.

That nothing of them stays behind is what tests/e2e/test_kills.py shows; here it is what comes out in the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from params.artifacts import Artifacts
from tests.chaos.campaign import IS_LONG
from tests.chaos.victims import folder_differences
from tests.support.project import Project, wait_for

pytestmark = pytest.mark.skipif(not IS_LONG, reason="`make chaos` kills the drivers too")


def test_run_survives_kills_of_flow_dvc_and_stage(project: Project, tmp_path: Path) -> None:
    project.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 300")
    made = Artifacts("tiny", project.root)
    project.run("dvc", "repro", "train@tiny")
    for place in (made.checkpoint, made.model, made.history):
        shutil.copytree(place, tmp_path / "golden" / place.name)
        shutil.rmtree(place)
    shutil.rmtree(project.root / ".dvc" / "cache")
    shutil.rmtree(project.root / ".dvc" / "tmp")
    (project.root / "dvc.lock").unlink()
    shutil.rmtree(made.run)

    flow = ("python", "-m", "flows.retrain", "tiny")
    dvc = ("dvc", "repro", "train@tiny")
    stage = ("tasks train", "params/tiny.yaml")
    kill(project, flow, lambda process: process)
    kill(project, dvc, lambda process: process)
    kill(project, dvc, lambda _: project.processes(*stage)[0])

    out = project.run(*flow)
    assert "goes on at step" in out
    for place in (made.checkpoint, made.model, made.history):
        assert folder_differences(tmp_path / "golden" / place.name, place) == []


def kill(project: Project, command: tuple[str, ...], whom: Callable[[psutil.Process], psutil.Process]) -> None:
    """Kill what `whom` says of a command, once the training that it started has left another checkpoint."""
    known = checkpoints(project)
    process = project.start(*command, log="driver.log")
    wait_for(lambda: checkpoints(project) - known, "another checkpoint", 180)
    below = project.processes()
    whom(psutil.Process(process.pid)).kill()
    process.wait(60)
    assert process.returncode != 0
    wait_for(lambda: not project.processes(), "the end of all processes", 20)
    # DVC takes a dead process that the system has not yet forgotten for a living owner of its locks.
    wait_for(lambda: not any(psutil.pid_exists(one.pid) for one in below), "the system to forget them", 30)
    if known:
        assert "goes on at step" in (project.root / "driver.log").read_text()


def checkpoints(project: Project) -> set[Path]:
    return set((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))

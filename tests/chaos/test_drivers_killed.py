"""Kill only the flow, only dvc, only the stage, one after the other: the run ends like an uninterrupted one.

tests/e2e/test_kills.py shows that no process stays behind; this test compares the results.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from params.foundation.artifacts import Artifacts
from tests.chaos.campaign import IS_LONG
from tests.chaos.victims import folder_differences, trained_folders
from tests.support.project import Project, wait_for

pytestmark = pytest.mark.skipif(not IS_LONG, reason="only `make chaos` kills the drivers")


def test_run_survives_kills_of_flow_dvc_and_stage(project: Project, tmp_path: Path) -> None:
    project.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 300")
    artifacts = Artifacts("tiny", project.root)
    project.run("dvc", "repro", "train@tiny")
    for folder in trained_folders(artifacts):
        shutil.copytree(folder, tmp_path / "golden" / folder.name)
        shutil.rmtree(folder)
    shutil.rmtree(project.root / ".dvc" / "cache")
    shutil.rmtree(project.root / ".dvc" / "tmp")
    (project.root / "dvc.lock").unlink()
    shutil.rmtree(artifacts.run)
    shutil.rmtree(project.root / ".scratch")  # it has the finished run until the next command

    flow = ("python", "-m", "flows.cli", "run", "tiny")
    dvc = ("dvc", "repro", "train@tiny")
    stage = ("tasks train", "params/tiny.yaml")
    kill(project, flow, lambda process: process)
    kill(project, dvc, lambda process: process)
    kill(project, dvc, lambda _: project.processes(*stage)[0])

    out = project.run(*flow)
    assert "resumes at step" in out
    for folder in trained_folders(artifacts):
        assert folder_differences(tmp_path / "golden" / folder.name, folder) == []


def kill(project: Project, command: tuple[str, ...], target: Callable[[psutil.Process], psutil.Process]) -> None:
    """Start a command, and kill a process of it when the training has another checkpoint; `target` chooses the process."""
    known = checkpoints(project)
    process = project.start(*command, log="driver.log")
    wait_for(lambda: checkpoints(project) - known, "another checkpoint", 180)
    processes = project.processes()
    target(psutil.Process(process.pid)).kill()
    process.wait(60)
    assert process.returncode != 0
    wait_for(lambda: not project.processes(), "the end of all processes", 20)
    # For DVC, a dead process that the system still lists is alive and owns its locks.
    wait_for(lambda: not any(psutil.pid_exists(process.pid) for process in processes), "the system to remove them", 30)
    if known:
        assert "resumes at step" in (project.root / "driver.log").read_text()


def checkpoints(project: Project) -> set[Path]:
    return set((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))

"""A source that has new rows at each run, and a worker that dies: the run is finished, the next has the new rows."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.support.project import Project, wait_for

SOURCE = """\
from pathlib import Path

def rows():
    calls = Path("calls.txt")
    with calls.open("a") as file:
        file.write("x")
    for number in range(200 + 20 * len(calls.read_text())):
        yield {"text": f"The cat likes the bird, and then number {number} comes."}
"""

DRIVER = """\
import logging, sys
from flows.run import stages
logging.basicConfig(level="INFO", stream=sys.stdout, force=True)
for stage in ("ingest", "validate", "tokenize", "train"):
    stages.bring_up_to_date(stage, "tiny", logging.getLogger())
"""
"""What the flow does, without Prefect's server, which takes most of its time."""


@pytest.mark.slow
def test_run_of_a_growing_source_is_finished_although_its_worker_dies(project: Project) -> None:
    project.use_source("grow", SOURCE, options=", refresh: true")
    project.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 120")

    kill_at_next_checkpoint(project)
    out = project.run("python", "-c", DRIVER)
    assert "keeps the rows of 0.0 hours ago" in out
    assert "resumes at step" in out
    assert rows(project) == 220
    first = project.json("runs/tiny/history/training.json")["run"]

    project.run("python", "-c", DRIVER)
    assert rows(project) == 240
    assert project.json("runs/tiny/history/training.json")["run"] != first


def rows(project: Project) -> int:
    """All rows that ingest has read."""
    return sum(project.json("runs/tiny/raw/source.json")["rows"].values())


def kill_at_next_checkpoint(project: Project) -> None:
    """Start the stages and kill their driver, and with it all processes, as soon as the training has another checkpoint."""
    known = checkpoints(project)
    driver = project.start("python", "-c", DRIVER, log="driver.log", fork=True)
    wait_for(lambda: checkpoints(project) - known, "another checkpoint", 300)
    ids = [process.pid for process in project.processes()]
    driver.kill()
    driver.wait()
    wait_for(lambda: not project.processes(), "the end of all processes", 20)
    # For DVC, a dead process that the system still lists is alive and owns its locks.
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in ids), "the system to remove them", 30)


def checkpoints(project: Project) -> set[Path]:
    return set((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))

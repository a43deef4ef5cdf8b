"""A query that hangs ends its stage within launch.stage_timeout_s, and the flow tries again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.project import Project, copy_project, wait_for

SOURCE = """
import csv, pathlib, time

def rows():
    with open("data/sentences.csv", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file)):
            while number == 250 and pathlib.Path("hangs").exists():
                time.sleep(600)
            yield row
"""


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory, prefect_home) -> Iterator[Project]:
    """A project whose source hangs at row 250 while the file `hangs` exists."""
    root = tmp_path_factory.mktemp("hanging")
    copy_project(root)
    made = Project(root, prefect_home)
    (root / "params/slow_rows.py").write_text(SOURCE, encoding="utf-8")
    made.edit(
        "params/tiny.yaml",
        "{kind: files, train: data/sentences.csv}",
        "{kind: function, function: 'params.slow_rows:rows'}",
    )
    made.edit("params/tiny.yaml", "launch: {", "launch: {stage_timeout_s: 3.0, ")
    made.edit("dvc.yaml", "{data: data/sentences.csv", "{data: params/slow_rows.py")
    (root / "hangs").touch()
    made.run("git", "init", "-q")
    try:
        yield made
    finally:
        made.end()


def test_a_source_that_hangs_ends_the_stage_and_is_tried_again(project: Project) -> None:
    error = "StalledError: ingest: made no progress for 3 s, at params/slow_rows.py:8 in rows"
    assert error in project.run("dvc", "repro", "ingest@tiny", ok=False, timeout_s=90)
    flow = project.start("python", "-m", "flows.cli", "run", "tiny", "--no-publish", log="flow.log")
    log = project.root / "flow.log"
    wait_for(lambda: "ingest: made no progress for 3 s" in log.read_text(), "the end of the stage", 120)
    (project.root / "hangs").unlink()
    project.edit("params/tiny.yaml", "stage_timeout_s: 3.0", "stage_timeout_s: 60.0")
    assert flow.wait(300) == os.EX_OK, log.read_text()

"""A source that hangs ends its stage within launch.stage_timeout_s, with an error that a retry may cure."""

from __future__ import annotations

from tests.support.project import Project

SOURCE = """
import csv, time

def rows():
    with open("data/sentences.csv", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number == 250:
                time.sleep(600)
            yield row
"""


def test_a_source_that_hangs_ends_its_stage(project: Project) -> None:
    project.use_source("params.slow_rows", SOURCE)
    project.edit("params/tiny.yaml", "launch: {", "launch: {stage_timeout_s: 15.0, ")
    error = "StalledError: ingest: made no progress for 15 s, at params/slow_rows.py:8 in rows"
    assert error in project.run("dvc", "repro", "ingest@tiny", ok=False, timeout_s=90)

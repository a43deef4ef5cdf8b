"""A source that hangs, or never comes to its end, ends its stage with an error that a retry may cure."""

from __future__ import annotations

import re

import pytest

from params.foundation.artifacts import Artifacts
from tasks.history.run_log import read_runs
from tests.support.project import Project, wait_for, write_sentences

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
    project.edit("params/tiny.yaml", "launch: {", "launch: {stage_timeout_s: 7.0, ")
    error = "StalledError: ingest: made no progress for 7 s, at params/slow_rows.py:8 in rows"
    assert error in project.run("dvc", "repro", "ingest@tiny", ok=False, timeout_s=90)


ENDLESS = """
import csv, time
from pathlib import Path

def rows():
    with open("data/sentences.csv", encoding="utf-8") as file:
        yield from csv.DictReader(file)
    number = 300
    while Path("endless").exists():
        for number in range(number, number + 1000):
            yield {"text": f"Page after page, number {number}.", "number": str(number)}
        time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_source_without_end_ends_its_stage_if_an_earlier_run_came_to_one(project: Project) -> None:
    project.use_source("params.endless_rows", ENDLESS, options=", refresh: true")
    project.edit("params/tiny.yaml", "launch: {", "launch: {stage_timeout_s: 15.0, max_slowdown: 2.0, ")
    write_sentences(
        project.root / "data/sentences.csv", empty=range(40, 80)
    )  # two stages will do: validate refuses them
    run = ("python", "-m", "flows.cli", "run", "tiny")
    assert "40 of 300 rows" in project.run(*run, ok=False)

    endless, log = project.root / "endless", project.root / "flow.log"
    endless.touch()
    flow = project.start(*run, log="flow.log", fork=True)
    ended = "StalledError('ingest@tiny', 'was ended because it took longer than "
    wait_for(lambda: ended in log.read_text(encoding="utf-8"), "the end of the stage", 200)
    assert not project.processes("tasks", "ingest")
    endless.unlink()
    assert flow.wait(200) != 0
    text = log.read_text(encoding="utf-8")
    assert "made no progress" not in text
    assert "2 times the longest of its last 1 run(s), " in text
    assert "40 of 300 rows" in text.partition(ended)[2], "tried again, it comes to its end"
    first, second = read_runs(Artifacts("tiny", project.root))
    outcomes = {"ingest": "ran", "validate": "failed"}
    assert [{name: one.outcome for name, one in run.stages.items()} for run in (first, second)] == [outcomes, outcomes]
    seconds, last_start_s = second.stages["ingest"].seconds, second.stages["ingest"].last_start_s
    assert last_start_s
    assert seconds - last_start_s > 15, "what was ended does not count as a past run"


@pytest.mark.slow
def test_a_training_that_is_far_slower_than_the_last_one_leaves_a_checkpoint_and_goes_on(finished: Project) -> None:
    launch = "launch: {stage_timeout_s: 15.0, stall_timeout_s: 10.0, max_slowdown: 1.0, "
    finished.edit("params/tiny.yaml", "launch: {", launch)
    slow, beat = finished.root / "slow", "        self._beats += 1\n"
    wait = f"__import__('time').sleep(4 * (phase == 'training' and Path({str(slow)!r}).exists()))"
    finished.edit("trainer/runtime/heartbeat.py", beat, f"{beat}        {wait}\n")  # code that decides no weights
    write_sentences(finished.root / "data/sentences.csv", seed=5)
    slow.touch()
    flow = finished.start("python", "-m", "flows.cli", "run", "tiny", log="flow.log", fork=True)
    log = finished.root / "flow.log"
    ended = "StalledError('train@tiny', 'was ended because it took longer than "
    wait_for(lambda: ended in log.read_text(encoding="utf-8"), "the end of the training", 200)
    slow.unlink()
    assert flow.wait(200) == 0
    before, _, after = log.read_text(encoding="utf-8").partition(ended)
    assert "SIGTERM: stopping with a checkpoint" in before
    assert re.search(r" resumes at step [1-9]\d* ", after)
    *_, last = read_runs(Artifacts("tiny", finished.root))
    assert (last.outcome, last.stages["train"].outcome) in {("published", "ran"), ("kept", "ran")}

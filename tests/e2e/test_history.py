"""Real flows in the log of runs, however they end: the tests share one project, and stand in the order of its runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.history.run_log import RunEntry, read_runs
from tests.support.project import Project, wait_for, write_sentences

pytestmark = [pytest.mark.in_order, pytest.mark.slow]


def runs(project: Project) -> list[RunEntry]:
    return read_runs(Artifacts("tiny", project.root))


def page(project: Project) -> str:
    return (project.root / "runs/index.html").read_text(encoding="utf-8")


def stages(entry: RunEntry) -> dict[str, str]:
    return {name: stage.outcome for name, stage in entry.stages.items()}


def flow(project: Project, *options: str, ok: bool = True) -> RunEntry:
    """Run the flow; what it has logged."""
    before = len(runs(project))
    project.run("python", "-m", "flows.cli", "run", "tiny", *options, ok=ok)
    (entry,) = runs(project)[before:]
    return entry


def test_a_run_that_keeps_the_champion_costs_something(finished: Project) -> None:
    finished.edit("params/tiny.yaml", "eval_batch_size: 32", "eval_batch_size: 32, price_per_hour: 3600")
    entry = flow(finished, "--force")
    assert (entry.outcome, entry.verdict, entry.succeeded) == ("kept", "keep", True)
    assert "the published model has the same weights" in entry.reasons[0]
    assert entry.evaluated is not None
    assert entry.evaluated.value == entry.evaluated.champion
    assert entry.cost == entry.seconds
    assert "Cost: " in (finished.root / "runs/tiny/report.html").read_text(encoding="utf-8")


def test_a_run_up_to_the_evaluation_is_logged_as_such(finished: Project) -> None:
    finished.edit("params/tiny.yaml", "gate: {resamples: 200}", "gate: {resamples: 201}")
    entry = flow(finished, "--no-publish")
    assert (entry.outcome, list(entry.stages)) == ("evaluated", list(STAGES[:5]))


def test_a_refused_model_is_logged_with_the_words_of_the_gate(finished: Project) -> None:
    finished.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 21")
    finished.edit("params/tiny.yaml", "gate: {resamples: 201}", "gate: {resamples: 201, floors: {loss: 0.001}}")
    entry = flow(finished, ok=False)
    assert (entry.outcome, entry.verdict, entry.error, entry.tag) == ("refused", "refuse", None, None)
    assert re.search(r"loss [\d.]+ is above 0\.001", entry.reasons[0])
    assert stages(entry)["publish"] == "failed"
    assert "Needs a look" in page(finished)


def test_a_failed_run_is_logged_with_its_stage_and_error(finished: Project) -> None:
    write_sentences(finished.root / "data/sentences.csv", empty=range(40, 80))
    entry = flow(finished, ok=False)
    assert (entry.outcome, entry.evaluated, entry.rows) == ("failed", None, {})
    assert stages(entry) == {"ingest": "ran", "validate": "failed"}
    assert entry.error is not None
    assert (entry.error.type, "40 of 300 rows" in entry.error.what) == ("DataError", True)
    assert entry.error.where.startswith("validate@tiny: ")


def start_training(project: Project) -> subprocess.Popen[bytes]:
    """A flow in the middle of a long training."""
    process = project.start("python", "-m", "flows.cli", "run", "tiny", log="flow.log", fork=True)
    wait_for(lambda: list(project.root.glob(".scratch/tiny/checkpoints/*/checkpoint-*")), "a checkpoint", 120)
    return process


def test_a_cancelled_run_is_logged(finished: Project) -> None:
    write_sentences(finished.root / "data/sentences.csv", seed=5)
    finished.edit("params/tiny.yaml", "max_steps: 21", "max_steps: 4000")
    finished.edit("params/tiny.yaml", "floors: {loss: 0.001}", "floors: {}")
    process = start_training(finished)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    entry = runs(finished)[-1]
    assert (entry.outcome, entry.error, entry.succeeded) == ("cancelled", None, False)
    assert stages(entry)["train"] == "cancelled"
    assert entry.rows["train"] > 200


def test_a_killed_run_is_logged_by_the_next_one(finished: Project) -> None:
    known = runs(finished)
    process = start_training(finished)
    wait_for(lambda: "resumes at step" in (finished.root / "flow.log").read_text(), "the training to go on", 60)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not finished.processes("trainer"), "the end of the training", 30)
    assert runs(finished) == known
    finished.edit("params/tiny.yaml", "max_steps: 4000", "max_steps: 25")
    finished.run("python", "-m", "flows.cli", "run", "tiny")
    crashed, last = runs(finished)[len(known) :]
    assert (crashed.outcome, stages(crashed)["train"]) == ("crashed", "crashed")
    assert crashed.error is not None
    assert last.outcome in {"published", "kept"}


def test_the_command_lists_the_runs_and_writes_the_page(finished: Project) -> None:
    entries = runs(finished)
    (finished.root / "runs/index.html").unlink()
    shown = finished.run("python", "-m", "flows.cli", "history").splitlines()
    outcomes = [re.search(r"  tiny +(\S+)", line)[1] for line in shown[1:-1]]
    assert outcomes == [entry.outcome for entry in reversed(entries)]
    assert shown[-1] == "page: runs/index.html"
    assert "Up to date" in page(finished)
    with (finished.root / "runs/tiny/runs.jsonl").open("a") as log:
        log.write("damaged\n")
    command = "python -m flows.cli history tiny --json --last 2"
    listed = json.loads(finished.run("sh", "-c", f"{command} 2> errors.log"))
    assert [RunEntry.model_validate(one) for one in listed] == entries[:-3:-1]
    assert "ignored, because the line is damaged" in (finished.root / "errors.log").read_text()

"""A training that has used up launch.max_hours: it stops with a checkpoint, and goes on only with a larger budget."""

from __future__ import annotations

import os

import pytest

from params.foundation.artifacts import Artifacts
from tasks.history.run_log import RunEntry, read_runs
from tests.support import tiny
from tests.support.project import Project, wait_for
from trainer.runtime import heartbeat

BUDGET_H = 12 / 3600
"""Long enough for some steps, even on a busy machine."""
LONG = {"training.max_steps": 20000, "training.eval_steps": 10000, "training.save_steps": 10000}
"""Longer than the budget: no checkpoint comes by itself."""
TRAIN = ("python", "-m", "tasks", "train", "params/tiny.yaml")
SPENT = f"budget spent: {BUDGET_H:g} h; its newest checkpoint is of step "


def newest_step(project: Project) -> int:
    """The step of the only checkpoint."""
    (path,) = (project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*")
    return int(path.name.removeprefix("checkpoint-"))


def reached(project: Project) -> int:
    """The step that a training has reached."""
    folders = (project.root / ".scratch/tiny/checkpoints").glob("*")
    return max((pulse.step for folder in folders for pulse in heartbeat.read_process_states(folder)), default=0)


@pytest.mark.slow
def test_a_spent_budget_leaves_a_checkpoint_and_a_larger_one_goes_on(project: Project) -> None:
    tiny.tokenized(project.root, tiny.recipe(LONG | {"launch.max_hours": BUDGET_H}), tiny.SIZES)
    status, out = project.run_and_report(*TRAIN)
    assert status == os.EX_UNAVAILABLE, out
    step = newest_step(project)
    assert f"BudgetSpentError: launch.max_hours: {SPENT}{step}\n" in out
    assert "stopping with a checkpoint" in out
    assert 0 < step < 10000

    status, out = project.run_and_report(*TRAIN)
    assert status == os.EX_UNAVAILABLE, out
    assert "stopping with a checkpoint" not in out, "the time of earlier starts counts: it does not train again"
    assert f"BudgetSpentError: launch.max_hours: {SPENT}{step}\n  fix: raise it, and the next run goes on" in out

    tiny.write(project.root / "params/tiny.yaml", tiny.recipe(LONG | {"launch.max_hours": 1.0}))
    project.start(*TRAIN, log="train.log", fork=True)
    log = project.root / "train.log"
    wait_for(lambda: f"resumes at step {step} " in log.read_text(encoding="utf-8"), "the training to go on", 60)
    wait_for(lambda: reached(project) > step, "a step", 60)


def flow(project: Project) -> RunEntry:
    """Run the flow, which ends because the budget is spent; what it has logged."""
    artifacts = Artifacts("tiny", project.root)
    before = len(read_runs(artifacts))
    status, out = project.run_and_report("python", "-m", "flows.cli", "run", "tiny")
    assert status == os.EX_UNAVAILABLE, out
    (entry,) = read_runs(artifacts)[before:]
    return entry


@pytest.mark.slow
def test_each_run_of_the_flow_says_that_the_budget_is_spent_until_it_is_raised(project: Project) -> None:
    launch = f"launch: {{max_hours: {BUDGET_H}, price_per_hour: 3600, "
    project.edit("params/tiny.yaml", "launch: {", launch)
    project.edit("params/tiny.yaml", "max_steps: 20\n", "max_steps: 20000\n")
    project.edit("params/tiny.yaml", "eval_steps: 10\n  save_steps: 5\n", "eval_steps: 10000\n  save_steps: 10000\n")
    first = flow(project)
    step = newest_step(project)
    assert (first.outcome, first.succeeded, first.cost) == ("budget spent", False, first.seconds)
    assert first.error is not None
    assert first.error.type == "BudgetSpentError"
    assert (first.error.where, first.error.what) == ("train@tiny: launch.max_hours", f"{SPENT}{step}")
    assert list(first.stages) == ["ingest", "validate", "tokenize", "train"]
    assert (first.stages["train"].outcome, first.stages["train"].seconds > 3600 * BUDGET_H) == ("failed", True)
    report = (project.root / "runs/tiny/report.html").read_text(encoding="utf-8")
    assert "budget spent" in report
    assert ", at 3,600.00 an hour (launch.price_per_hour)." in report

    second = flow(project)
    assert (second.outcome, second.error) == ("budget spent", first.error)
    assert newest_step(project) == step
    shown = project.run("python", "-m", "flows.cli", "history", "tiny").splitlines()
    assert ["  tiny    budget spent  " in line for line in shown[1:-1]] == [True, True], shown

    project.edit("params/tiny.yaml", launch, launch.replace(f"{BUDGET_H}", "1"))
    project.start("python", "-m", "flows.cli", "run", "tiny", log="flow.log", fork=True)
    log = project.root / "flow.log"
    wait_for(lambda: f"resumes at step {step} " in log.read_text(encoding="utf-8"), "the training to go on", 120)
    wait_for(lambda: reached(project) > step, "a step", 60)

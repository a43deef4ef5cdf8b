"""A year of runs on two sources that change every month, three of them killed, ends like a year without a kill.

EVERGREEN_CHAOS_MONTHS sets the number of months.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from params.foundation.artifacts import Artifacts
from tasks.history.run_log import read_runs
from tests.support.project import Project, copy_project, stages_of, wait_for

SUBJECTS = {"animal": ["cat", "dog", "cow"], "weather": ["rain", "snow", "fog"], "food": ["bread", "soup", "rice"]}
LASTS = 4
"""Months in which a word is said: each label gets one every month, so that there is something to learn."""
MONTHS = int(os.environ.get("EVERGREEN_CHAOS_MONTHS", "12"))
FLOW = ("python", "-m", "flows.cli", "run", "tiny")
RECIPE: dict[str, Any] = {
    "data": {
        "sources": {
            "base": {"kind": "files", "train": "data/year/base.jsonl"},
            "feedback": {"kind": "files", "train": "data/year/feedback-*.jsonl", "columns": {"text": "said"}},
        },
        "time_column": "at",
        "split": {"by": "time", "test": "28d", "validation": "28d"},
        "window": "300d",
    },
    "objective": {"name": "sequence_classification"},
    "model": {
        "config": {
            "model_type": "bert",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "start": "champion",
    },
    "training.max_steps": 60,
    "training.learning_rate": 1e-3,
    "training.replay": {"known": 0.5},
    "training.stay_close": 0.01,
    "evaluation.compare_untrained": False,
    "evaluation.gate.margin": 0.9,
    "publish.repo_id": "tests/tiny",
}


def is_training(project: Project) -> bool:
    """Whether the training has a checkpoint."""
    return any((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))


def is_at(stage: str) -> Callable[[Project], bool]:
    """Whether a stage runs."""
    return lambda project: bool(project.processes("tasks", stage))


KILLS: dict[int, Callable[[Project], bool]] = {2: is_training, 7: is_at("validate"), 10: is_at("publish")}
"""What must hold for the run of a month to be killed."""


@pytest.fixture
def unbroken(tmp_path: Path, prefect_home: Path) -> Iterator[Project]:
    """A second project."""
    root = tmp_path / "unbroken"
    copy_project(root)
    made = Project(root, prefect_home)
    made.run("git", "init", "-q", "-b", "main")
    try:
        yield made
    finally:
        made.end()


def word(label: str, month: int) -> str:
    """The word of a label that comes up in a month."""
    return "".join(random.Random(f"{label} {month}").choices("bcdfghklmnprstvz", k=6))


def rows(name: str, count: int, month: int) -> list[dict[str, str]]:
    """Rows of a month; food is a new label in April, and each word is new at some time."""
    chance = random.Random(f"{name} {month}")
    text, found = "said" if name == "feedback" else "text", []
    for number in range(count):
        label = chance.choice([*SUBJECTS] if month >= 4 else ["animal", "weather"])
        at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=28 * month + chance.random() * 28)
        words = SUBJECTS[label] + [word(label, past) for past in range(month - LASTS + 1, month + 1)]
        found.append({text: f"{chance.choice(words)} {name} {month} {number}", "label": label, "at": at.isoformat()})
    return found


def write_month(project: Project, month: int) -> None:
    """Let a month begin: `base` gets longer, and `feedback` gets a file."""
    (project.root / "data/year").mkdir(exist_ok=True)
    project.rows("year/base", [row for past in range(-4, month + 1) for row in rows("base", 40, past)])
    project.rows(f"year/feedback-{month:02}", rows("feedback", 60, month))


def kill(project: Project, is_due: Callable[[Project], bool]) -> None:
    """Start a run, and kill its flow as soon as it is due."""
    driver = project.start(*FLOW, log="driver.log", fork=True)
    wait_for(lambda: is_due(project) or driver.poll() is not None, "the moment", 1200, every_s=0.02)
    assert driver.poll() is None, (project.root / "driver.log").read_text()
    left = project.processes()
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not project.processes(), "the end of all processes", 60)
    # For DVC, a dead process that the system still lists is alive and owns its locks.
    wait_for(lambda: not any(psutil.pid_exists(process.pid) for process in left), "the system to remove them", 60)


@pytest.mark.slow  # tests/e2e/test_continual.py shows how a run goes on, test_campaign.py what a kill leaves
@pytest.mark.timeout(3600)
def test_year_with_kills_ends_like_one_without(project: Project, unbroken: Project) -> None:
    for one in (project, unbroken):
        one.recipe("tiny", RECIPE)
        one.edit("recipes.yaml", "data/sentences.csv", "data/year")
        one.edit("recipes.yaml", "causal_lm.py", "sequence_classification.py")
    killed = 0
    for month in range(1, MONTHS + 1):
        for one in (project, unbroken):
            write_month(one, month)
        if month in KILLS:
            kill(project, KILLS[month])
            killed += 1
        for one in (project, unbroken):
            assert stages_of(one.run(*FLOW, timeout_s=1200)), f"nothing to do in month {month}"
            assert (one.json("runs/tiny/validated/start/start.json") is None) == (month == 1)
        weights = [(one.root / "runs/tiny/model/model.safetensors").read_bytes() for one in (project, unbroken)]
        assert weights[0] == weights[1], f"the weights differ in month {month}"
    assert project.flow() == project.repro() == []

    logged, other = (read_runs(Artifacts("tiny", one.root)) for one in (project, unbroken))
    finished = [entry for entry in logged if entry.outcome != "crashed"]
    assert len(logged) - len(finished) == killed
    assert len({entry.run_id for entry in logged}) == len(logged)
    outcomes = [entry.outcome for entry in other]
    assert [entry.outcome for entry in finished] == outcomes
    assert len({entry.tag for entry in finished}) == outcomes.count("published"), "each release once"
    assert len(outcomes) == MONTHS, "each month once"
    assert outcomes.count("published") > MONTHS / 2
    assert {*outcomes} <= {"published", "kept"}

"""A recipe that is run again and again: what is published is never replaced by what is not shown to be better.

The tests share one project and stand in the order in which they change it.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from tests.support.project import Project

LEARNING_RATE, SLOW = "learning_rate: 1e-2", "learning_rate: 2e-3"
GATE = "gate: {resamples: 200}"


def flow(project: Project, status: int = os.EX_OK) -> str:
    """Run the flow, which is to end with `status`; its output."""
    return project.run("sh", "-c", f"python -m flows.cli run tiny; test $? -eq {status}", timeout_s=500)


def last_state(project: Project) -> tuple[str, str]:
    """Name and type of the state that the last flow ended in."""
    with sqlite3.connect(Path(project.environment["PREFECT_HOME"], "prefect.db")) as database:
        (state,) = database.execute("SELECT state_name, state_type FROM flow_run ORDER BY start_time DESC LIMIT 1")
    return state


def test_a_worse_model_is_not_published_and_that_is_a_good_end(finished: Project) -> None:
    first = finished.json("runs/tiny/release/receipt.json")
    assert last_state(finished) == ("Completed", "COMPLETED")
    finished.edit("params/tiny.yaml", LEARNING_RATE, SLOW)
    out = flow(finished)
    receipt = finished.json("runs/tiny/release/receipt.json")
    assert (receipt["status"], receipt["commit"], receipt["tag"]) == ("kept", first["commit"], first["tag"])
    (reason,) = receipt["reasons"]
    assert "worse than the champion's" in reason
    assert "kept the champion: tests/tiny" in out
    assert reason in out
    assert last_state(finished) == ("Kept the champion", "COMPLETED")
    assert out.count("Finished in state Kept the champion(") == 2, "the publish task, and the flow"


def test_a_refused_model_fails_the_run_and_nothing_else(finished: Project) -> None:
    finished.edit("params/tiny.yaml", GATE, "gate: {resamples: 200, floors: {bits_per_byte: 0.01}}")
    out = flow(finished, os.EX_NOINPUT)
    assert "ModelError: publish@tiny: " in out
    assert "the gate refuses the model: bits_per_byte" in out
    assert "the recipe's floor" in out
    assert last_state(finished) == ("Failed", "FAILED")
    assert finished.json("runs/tiny/evaluation/blessing.json")["verdict"] == "refuse"
    assert "up to date" in finished.run("dvc", "status", "evaluate@tiny"), "the work is not lost"

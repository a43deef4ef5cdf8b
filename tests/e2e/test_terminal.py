"""Commands on a terminal: a bar shows the progress and nothing of it gets into a log; Ctrl-C says what is kept."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support import forked, tiny
from tests.support.project import Project, wait_for
from tests.support.terminal import CTRL_C, Terminal, terminal

BAR = "━"
SLOW_ROWS = """
import time

def rows():
    for number in range(6000):
        time.sleep(0.01)
        yield {"text": f"row {number}"}
"""


def on_terminal(project: Project, *command: str, fork: bool = True) -> AbstractContextManager[Terminal]:
    environment = forked.commands(project.environment) if fork else project.environment
    return terminal(*command, folder=project.root, environment={**environment, "TERM": "xterm"})


def check_interrupted(project: Project, seen: Terminal, *, says: str) -> None:
    """Ctrl-C ends the command with 130 and a text about what is kept, and nothing of it is left."""
    assert seen.end() == 130, seen.output
    said = seen.output.partition("^C")[2]
    assert re.search(says, said), seen.output
    assert "Traceback" not in seen.output
    wait_for(lambda: not project.processes(), "the end of all processes", 10)


def test_a_training_shows_its_steps(project: Project) -> None:
    recipe = tiny.recipe({"training.max_steps": 120, "training.logging_steps": 10, "training.eval_steps": 60})
    tiny.tokenized(project.root, recipe)
    with on_terminal(project, "python", "-m", "tasks", "train", "params/tiny.yaml") as seen:
        assert seen.end() == 0, seen.output
    assert re.search(r"train: steps ━+─* \d+/120 [\d.]+/s 0:00:\d\d loss \d", seen.output), seen.output
    assert "step 50 of 120, loss" not in seen.output, "the bar says it already"
    assert "validation at step 60: loss" in seen.output


def test_ctrl_c_ends_a_run_that_says_its_checkpoint_and_goes_on_from_there(finished: Project) -> None:
    project, log = finished, finished.root / "runs/tiny/logs/train.log"
    project.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 3000")
    with on_terminal(project, "evergreen", "run", "tiny") as seen:
        seen.wait_for("train: steps")
        seen.wait_for("/3000")
        wait_for(lambda: "train: step 10 of 3000, loss" in log.read_text(), "ten steps")
        seen.type(CTRL_C)
        check_interrupted(project, seen, says=r"interrupted: train@tiny\r\n  start again: it resumes from step \d+\r\n")
    assert "Crash detected" not in seen.output
    step = re.findall(r"it resumes from step (\d+)", seen.output)[-1]
    assert "its newest checkpoint is of step " + step in log.read_text()
    home = Path(project.environment["PREFECT_HOME"])
    logged = b"".join(path.read_bytes() for path in home.rglob("*.db*"))
    kept = [logged, *(path.read_bytes() for path in project.root.glob("**/*.log"))]
    assert not any(BAR.encode() in content for content in kept)
    with on_terminal(project, "evergreen", "run", "tiny") as again:
        again.wait_for(f" resumes at step {step} from ")
        again.type(CTRL_C)
        check_interrupted(project, again, says=r"interrupted: train@tiny\r\n  start again")


@pytest.mark.slow  # the other tests here show it in short
def test_ctrl_c_ends_a_stage_of_the_data(project: Project) -> None:
    project.use_source("slow_rows", SLOW_ROWS)
    with on_terminal(project, "evergreen", "ingest", "tiny") as seen:
        seen.wait_for("ingest: params/tiny.yaml")
        time.sleep(1.0)
        seen.type(CTRL_C)
        check_interrupted(project, seen, says="interrupted: ingest has not ended\r\n  start again: ")
    with on_terminal(project, "evergreen", "run", "tiny") as seen:
        seen.wait_for("ingest: params/tiny.yaml")
        time.sleep(1.0)
        seen.type(CTRL_C)
        check_interrupted(project, seen, says="interrupted: ingest@tiny\r\n  start again: what has ended is kept")


def test_ctrl_c_ends_a_rehearsal_without_traces(project: Project) -> None:
    with on_terminal(project, "evergreen", "rehearse", "tiny") as seen:
        seen.wait_for("usual rows: train")
        time.sleep(1.0)
        seen.type(CTRL_C)
        check_interrupted(project, seen, says="interrupted: a rehearsal keeps nothing")
    assert not (project.root / ".scratch/tiny/rehearsal").exists()


def test_ctrl_c_ends_new_with_nothing_written(project: Project) -> None:
    rows = "".join(f"what about number {i}?,{'ab'[i % 2]},{'xyz'[i % 3]}\n" for i in range(120))
    (project.root / "data" / "two.csv").write_text(f"question,team,urgency\n{rows}")
    before = (project.root / "recipes.yaml").read_bytes()
    with on_terminal(project, "evergreen", "new", "two", "--data", "data/two.csv", fork=False) as seen:
        seen.wait_for("Which model")
        seen.interrupt()
        check_interrupted(project, seen, says="interrupted: nothing is changed")
    assert not (project.root / "params/two.yaml").exists()
    assert (project.root / "recipes.yaml").read_bytes() == before

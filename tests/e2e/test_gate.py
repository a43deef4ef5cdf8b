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
RIVAL = '''
"""Another publisher: while the model is evaluated, puts one into the champion's place, once."""

from pathlib import Path

from params.artifacts import Artifacts
from tasks.hub_client.connection import open_repository


def publish_once(row):
    if not Path(".rival").exists():
        Path(".rival").write_text(publish())
    return "all"


def publish():
    from safetensors.torch import load_file, save_file

    from tasks.publishing.exactly_once import publish_release
    from tasks.publishing.release import plan_release

    folder = Path("rival")
    folder.mkdir()
    for source in Path("runs/tiny/model").iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    weights = load_file(folder / "model.safetensors")
    halves = {name: weight * 0.5 for name, weight in weights.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    with open_repository(Artifacts("tiny"), repo_id="tests/tiny", endpoint="local", to_write=True) as repository:
        release = plan_release(folder, repo_id="tests/tiny", tag=None, private=True, made_from={"who": "a rival"})
        return publish_release(repository, release, replaces=repository.head().weights).commit
'''


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


def test_a_model_comes_back_from_the_cache_and_its_blessing_does_not(finished: Project) -> None:
    assert finished.json("runs/tiny/evaluation/blessing.json")["champion"] is not None
    finished.edit("params/tiny.yaml", SLOW, LEARNING_RATE)
    out = flow(finished)
    assert "Stage 'train@tiny' is cached - skipping run" in out
    assert "Running stage 'evaluate@tiny'" in out
    blessing = finished.json("runs/tiny/evaluation/blessing.json")
    assert blessing["model"] == blessing["champion"]["weights"]
    receipt = finished.json("runs/tiny/release/receipt.json")
    assert receipt["status"] == "kept"
    assert "the same weights" in receipt["reasons"][0]


def test_a_refused_model_fails_the_run_and_nothing_else(finished: Project) -> None:
    before = finished.json("runs/tiny/evaluation/blessing.json")
    (finished.root / "tasks/rival.py").write_text(RIVAL)  # for the next test, which so need not train anew
    finished.edit("dvc.yaml", "code: trainer/losses.py", "code: tasks/rival.py")
    finished.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 40")
    finished.edit("params/tiny.yaml", GATE, "gate: {resamples: 200, floors: {bits_per_byte: 0.01}}")
    out = flow(finished, os.EX_NOINPUT)
    assert "ModelError: publish@tiny: " in out
    assert "the gate refuses the model: bits_per_byte" in out
    assert "the recipe's floor" in out
    assert last_state(finished) == ("Failed", "FAILED")
    assert finished.json("runs/tiny/evaluation/blessing.json")["verdict"] == "refuse"
    assert finished.json("runs/tiny/evaluation/blessing.json")["model"] != before["model"]
    for stage in ("train", "evaluate"):
        assert "up to date" in finished.run("dvc", "status", f"{stage}@tiny"), "the work is not lost"


def test_a_model_is_compared_anew_when_another_was_published_meanwhile(finished: Project) -> None:
    own = "slices: [{name: all, function: 'tasks.rival:publish_once'}], gate: {resamples: 200}"
    finished.edit("params/tiny.yaml", "gate: {resamples: 200, floors: {bits_per_byte: 0.01}}", own)
    out = flow(finished)
    rival = (finished.root / ".rival").read_text()
    assert "StaleBlessingError: " in out
    ran = [line.split("'")[-2] for line in out.splitlines() if "Running stage" in line]
    assert ran == ["evaluate@tiny", "publish@tiny", "evaluate@tiny", "publish@tiny"]
    blessing = finished.json("runs/tiny/evaluation/blessing.json")
    assert (blessing["verdict"], blessing["champion"]["commit"]) == ("publish", rival)
    receipt = finished.json("runs/tiny/release/receipt.json")
    assert receipt["status"] == "published"
    assert receipt["commit"] != rival
    assert last_state(finished) == ("Completed", "COMPLETED")
    details = finished.json("runs/tiny/evaluation/details.json")
    assert [(part["slice_by"], part["slice"]) for part in details["slices"]] == [("all", "all")]


def test_after_a_release_a_flow_does_nothing(finished: Project) -> None:
    assert finished.flow() == []

"""A model that comes back, another publisher, a Hub that is lost: a blessing holds for one champion only.

The tests share one project and stand in the order in which they change it.
"""

from __future__ import annotations

import shutil

import pytest

from tests.e2e.test_drivers import last_state
from tests.support.project import STAGES, Project, stages_of

pytestmark = pytest.mark.slow
FLOW = ("python", "-m", "flows.cli", "run", "tiny")
LEARNING_RATE, SLOW = "learning_rate: 1e-2", "learning_rate: 2e-3"
RIVAL = '''
"""Another publisher: while the model is evaluated, puts one into the champion's place, once."""

from pathlib import Path

from params.foundation.artifacts import Artifacts
from tasks.hub_client.connection import open_repository


def publish_once(row):
    if not Path(".rival").exists():
        Path(".rival").write_text(publish())
    return "all"


def publish():
    from safetensors.torch import load_file, save_file

    from tasks.publishing.exactly_once import publish_release
    from tasks.publishing.release_plan import plan_release

    folder = Path("rival")
    folder.mkdir()
    for source in Path("runs/tiny/model").iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    weights = load_file(folder / "model.safetensors")
    halves = {name: weight * 0.5 for name, weight in weights.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    with open_repository(Artifacts("tiny"), repo_id="tests/tiny", endpoint="local", to_write=True) as repository:
        release = plan_release(folder, repo_id="tests/tiny", private=True, made_from={"who": "a rival"})
        return publish_release(repository, release).commit
'''


def test_a_model_comes_back_from_the_cache_and_its_blessing_does_not(finished: Project) -> None:
    finished.edit("params/tiny.yaml", LEARNING_RATE, SLOW)
    finished.flow()
    assert finished.json("runs/tiny/evaluation/blessing.json")["champion"] is not None
    finished.edit("params/tiny.yaml", SLOW, LEARNING_RATE)
    out = finished.run(*FLOW)
    assert "train@tiny: restored" in out
    assert "evaluate" in stages_of(out)
    blessing = finished.json("runs/tiny/evaluation/blessing.json")
    assert blessing["model"] == blessing["champion"]["weights"]
    receipt = finished.json("runs/tiny/release/receipt.json")
    assert receipt["status"] == "kept"
    assert "the same weights" in receipt["reasons"][0]


def test_a_model_is_compared_anew_when_another_was_published_meanwhile(finished: Project) -> None:
    (finished.root / "tasks/rival.py").write_text(RIVAL)
    finished.edit("recipes.yaml", "code: trainer/losses.py", "code: tasks")
    finished.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 40")
    own = "slices: [{name: all, function: 'tasks.rival:publish_once'}], gate: {resamples: 200}"
    finished.edit("params/tiny.yaml", "gate: {resamples: 200}", own)
    out = finished.run(*FLOW)
    rival = (finished.root / ".rival").read_text()
    assert "another model was published since this one was compared with the champion" in out
    assert stages_of(out) == ["train", "evaluate", "publish", "evaluate", "publish"]
    blessing = finished.json("runs/tiny/evaluation/blessing.json")
    assert (blessing["verdict"], blessing["champion"]["commit"]) == ("publish", rival)
    receipt = finished.json("runs/tiny/release/receipt.json")
    assert receipt["status"] == "published"
    assert receipt["commit"] != rival
    assert last_state(finished) == ("Published", "COMPLETED")
    details = finished.json("runs/tiny/evaluation/details.json")
    assert [(part["slice_by"], part["slice"]) for part in details["slices"]] == [("all", "all")]


def test_after_a_release_a_flow_does_nothing(finished: Project) -> None:
    assert finished.flow() == []


def test_a_release_that_the_hub_lost_is_published_again(finished: Project) -> None:
    shutil.rmtree(finished.root / ".hub")
    assert finished.repro() == []  # DVC cannot know
    assert finished.flow() == ["evaluate", "publish"]  # the blessing was against what the Hub lost


def test_after_a_forced_repro_the_flow_runs_nothing(finished: Project) -> None:
    assert finished.repro("--force") == list(STAGES)
    assert finished.flow() == []


def test_without_publish_the_flow_stops_before_it(finished: Project) -> None:
    receipt = (finished.root / "runs/tiny/release/receipt.json").read_bytes()
    finished.edit("params/tiny.yaml", "split: test", "split: validation")
    assert finished.flow("--no-publish") == ["evaluate"]
    assert (finished.root / "runs/tiny/release/receipt.json").read_bytes() == receipt

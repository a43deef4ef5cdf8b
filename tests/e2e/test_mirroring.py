"""A training whose checkpoints go to a Hub, and another machine that goes on from there: real processes, the real client."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi

from params.foundation.artifacts import Artifacts
from tasks.hub_server.server import LocalHub
from tests.support import tiny
from tests.support.project import Project, free_port, wait_for
from tests.support.training import assert_same

TOKEN = "hf_tokenoftests"
REPO = "tests/tiny"
TRAIN = ("python", "-m", "tasks", "train", "params/tiny.yaml")
SIZES = {"train": 120, "validation": 20, "test": 20}
STEPS = 140
BASE = {
    "training.max_steps": STEPS,
    "training.eval_steps": 20,
    "training.save_steps": 20,
    "training.logging_steps": 10,
    # The best weights are those of an early evaluation, and must come along with a later checkpoint.
    "training.learning_rate": 3.0,
    "training.lr_scheduler": "constant",
    "launch.micro_batch_size": 2,
}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HfApi]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    with LocalHub(tmp_path / "hub", tokens={TOKEN: "tests"}) as hub:
        yield HfApi(endpoint=hub.endpoint, token=TOKEN)


def machine(project: Project, endpoint: str, changes: dict[str, Any]) -> Project:
    """The project, with tokens and a way to the Hub."""
    tiny.tokenized(project.root, tiny.recipe(BASE | changes), SIZES)
    project.environment |= {"HF_ENDPOINT": endpoint, "HF_TOKEN": TOKEN}
    return project


def another(project: Project, name: str) -> Project:
    """A machine with the same project, recipe and tokens, and nothing of what was trained."""
    root = project.root.with_name(name)
    shutil.copytree(project.root, root, ignore=shutil.ignore_patterns(".scratch", "*.log"))
    made = Project(root, Path(project.environment["PREFECT_HOME"]))
    made.environment = project.environment | {"HF_HOME": str(root / ".hf")}
    return made


def folders(api: HfApi) -> dict[str, set[str]]:
    """The folders of the branch with their files."""
    found: dict[str, set[str]] = {}
    if api.repo_exists(REPO) and any(b.name == "checkpoints" for b in api.list_repo_refs(REPO).branches):
        for path in api.list_repo_files(REPO, revision="checkpoints"):
            place, _, name = path.rpartition("/")
            found.setdefault(place, set()).add(name)
    return found


def test_a_machine_is_lost_and_another_ends_with_the_same_bits(project: Project, api: HfApi) -> None:
    left_alone = machine(project, api.endpoint, {})
    first, second = another(left_alone, "first"), another(left_alone, "second")
    left_alone.run(*TRAIN)
    assert not folders(api), "nobody asked for a mirror"
    for one in (first, second):
        one.edit("params/tiny.yaml", "num_processes: 1", "num_processes: 1, mirror: last")
    log = first.root / "train.log"
    try:
        training = first.start(*TRAIN, log=log.name, fork=True)
        wait_for(lambda: "mirror: checkpoint-" in log.read_text(), "a checkpoint on the Hub", 120)
        assert training.poll() is None, log.read_text()
        os.killpg(training.pid, signal.SIGKILL)
        wait_for(lambda: not first.processes(), "the end of all that it had started", 10)
    finally:
        first.end()
    assert "Traceback" not in log.read_text()

    said = second.run(*TRAIN)
    step = int(said.partition("fetch: step ")[2].split()[0])
    assert 0 < step < STEPS
    assert f" resumes at step {step} from " in said
    assert second.processes() == []
    assert_same(Artifacts("tiny", left_alone.root), Artifacts("tiny", second.root))
    assert second.json("runs/tiny/history/training.json")["best_step"] < step, "the best weights came along"

    assert folders(api).keys() == {"last-checkpoint", "best", ""}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= folders(api)["best"]
    assert api.list_repo_files(REPO) == [".gitattributes"], "main is for releases"
    assert api.model_info(REPO).private
    assert TOKEN not in log.read_text() + said


@pytest.mark.slow
def test_all_keeps_each_checkpoint_whatever_is_deleted_here(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the Hub of this machine will do."""
    slow = {"launch.micro_batch_size": 1, "training.max_steps": 80, "training.save_steps": 10}
    one = machine(project, "", slow | {"launch.mirror": "all"})
    del one.environment["HF_ENDPOINT"], one.environment["HF_TOKEN"]
    said = one.run(*TRAIN)
    expected = {f"checkpoint-{step}" for step in range(10, 81, 10)}  # two of which stay here at a time
    assert said.count("mirror: checkpoint-") == 8
    assert list((one.root / ".scratch/tiny/mirror").iterdir()) == []
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    with LocalHub(one.root / ".hub", tokens={TOKEN: "tests"}) as hub:
        found = folders(HfApi(endpoint=hub.endpoint, token=TOKEN))
    assert found.keys() == expected | {"best", ""}
    assert all("optimizer.pt" in found[place] for place in expected)


@pytest.fixture
def silent() -> Iterator[str]:
    """A Hub that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("is_down", [True, False], ids=["down", "silent"])
def test_a_hub_that_does_not_answer_costs_a_warning(project: Project, api: HfApi, silent: str, is_down: bool) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}" if is_down else silent
    changes = {
        "launch.mirror": "last",
        "launch.stall_timeout_s": 6.0,
        "training.max_steps": 40,
        "publish.timeout_s": 5.0,
    }
    one = machine(project, endpoint, changes)
    said = one.run(*TRAIN)
    assert "train: the Hub may lack the last checkpoint: the mirror " in said
    assert "train: goes on with what exists locally, because the Hub gives no answer" in said
    assert ("no clear answer: ConnectError" in said) is is_down
    assert said.count("mirror: no clear answer: ") <= 1
    assert "Traceback" not in said
    assert one.json("runs/tiny/history/training.json")["steps"] == 40
    assert one.processes() == []

    one.environment["HF_ENDPOINT"] = api.endpoint
    later = one.run("python", "-m", "tasks", "mirror", "params/tiny.yaml")
    assert "mirror: checkpoint-40 and best-0 at" in later
    assert folders(api).keys() == {"last-checkpoint", "best", ""}
    assert TOKEN not in said + later

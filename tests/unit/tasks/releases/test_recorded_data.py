"""Which data in DVC's cache the releases of a recipe need."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from params.errors import HubRefusedError, TransientError
from tasks.publishing.exactly_once import changes, look
from tasks.publishing.provenance import FILE
from tasks.releases.recorded_data import recorded_data
from tasks.releases.rollback import roll_back
from tests.support import tiny
from tests.support.faulty_hub import FaultyHub
from tests.support.publications import REPO, TOKEN, patient, plan, publish


def release(api: HfApi, folder: Path, number: int, *, by_merge: bool = False) -> None:
    """Publish model `number`, made from rows and tokens with these digits in their hashes."""
    folder = folder / f"model-{number}"
    folder.mkdir()
    (folder / "README.md").write_text(f"---\nlicense: mit\n---\n# Model {number}\n")
    (folder / "model.safetensors").write_bytes(random.Random(number).randbytes(5000))
    outs = [{"path": "runs/tiny/raw", "hash": "md5", "md5": f"{rows(number)}"}]
    deps = [{"path": "tasks/ingestion", "hash": "md5", "md5": f"{number}" * 32}]
    record = {"dvc_lock": {"stages": {"ingest@tiny": {"deps": deps, "outs": outs}}}}
    (folder / FILE).write_text(json.dumps(record, indent=1))
    planned = plan(folder, tag=f"v{number}", made_from={})
    if by_merge:
        state = look(patient(api), planned)
        made = api.create_commit(REPO, changes(planned, state), commit_message="a model", create_pr=True)
        api.merge_pull_request(REPO, made.pr_num)
    else:
        publish(api, planned)


def rows(number: int) -> str:
    return f"{number:032x}.dir"


@pytest.fixture
def recipe(hub: FaultyHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    place = {"publish.repo_id": REPO, "publish.endpoint": hub.endpoint}
    return tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe(place))


def test_last_releases_and_the_published_one_are_needed(api: HfApi, recipe: Path, tmp_path: Path) -> None:
    assert recorded_data(recipe, last=3) == set(), "nothing is published"
    for number in (1, 2, 3):
        release(api, tmp_path, number)
    found = recorded_data(recipe, last=2)
    assert {rows(2), rows(3)} <= found
    assert rows(1) not in found
    roll_back(patient(api), "v1", by="ann", why="wrong answers")
    assert {rows(1), rows(3)} <= recorded_data(recipe, last=1)


def test_merged_release_is_needed_before_and_after_its_tag(api: HfApi, recipe: Path, tmp_path: Path) -> None:
    release(api, tmp_path, 1)
    release(api, tmp_path, 2, by_merge=True)
    release(api, tmp_path, 3)
    assert {rows(2), rows(3)} <= recorded_data(recipe, last=2)
    merged = api.list_repo_commits(REPO)[1].commit_id
    api.create_tag(REPO, tag="v2", revision=merged)
    assert {rows(2), rows(3)} <= recorded_data(recipe, last=2)
    assert rows(1) not in recorded_data(recipe, last=2)


def test_hub_that_does_not_answer_is_an_error(hub: FaultyHub, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.releases.recorded_data._TIMEOUT_S", 0.1)
    tiny.write(recipe, tiny.recipe({"publish.repo_id": REPO, "publish.endpoint": "http://127.0.0.1:9"}))
    with pytest.raises((TransientError, HubRefusedError)):
        recorded_data(recipe, last=1)

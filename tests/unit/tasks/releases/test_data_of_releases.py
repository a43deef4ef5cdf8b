"""Which data in DVC's cache the releases of a recipe need."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from params.foundation.errors import HubRefusedError, TransientError
from tasks.publishing.proposal import ReleaseProposals
from tasks.publishing.provenance import FILE
from tasks.releases.data_of_releases import fetch_release_data_hashes
from tasks.releases.rollback import commit_rollback
from tests.support.faulty_hub import FaultyHub
from tests.support.publications import REPO, TOKEN, patient, plan, publish


def release(api: HfApi, folder: Path, number: int, *, propose: bool = False) -> None:
    """Publish or propose model `number`, made from rows and tokens with these digits in their hashes."""
    folder = folder / f"model-{number}"
    folder.mkdir()
    (folder / "README.md").write_text(f"---\nlicense: mit\n---\n# Model {number}\n")
    (folder / "model.safetensors").write_bytes(random.Random(number).randbytes(5000))
    outs = [{"path": "runs/tiny/raw", "hash": "md5", "md5": f"{rows(number)}"}]
    deps = [{"path": "tasks/ingestion", "hash": "md5", "md5": f"{number}" * 32}]
    record = {"dvc_lock": {"stages": {"ingest@tiny": {"deps": deps, "outs": outs}}}}
    (folder / FILE).write_text(json.dumps(record, indent=1))
    if propose:
        planned = plan(folder, made_from={})
        ReleaseProposals(patient(api), "tiny").propose(planned)
    else:
        publish(api, plan(folder, tag=f"v{number}", made_from={}))


def rows(number: int) -> str:
    return f"{number:032x}.dir"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def needed(hub: FaultyHub) -> Callable[[int], set[int]]:
    """The numbers of the models whose rows the last releases need."""

    def find(last: int) -> set[int]:
        found = fetch_release_data_hashes(REPO, hub.endpoint, last=last, must_exist=False)
        return {number for number in range(10) if rows(number) in found}

    return find


def test_last_releases_and_the_published_one_are_needed(api: HfApi, needed: Callable, tmp_path: Path) -> None:
    assert needed(3) == set(), "nothing is published"
    for number in (1, 2, 3):
        release(api, tmp_path, number)
    assert needed(2) == {2, 3}
    commit_rollback(patient(api), "v1", by="ann", why="wrong answers")
    assert needed(1) == {1, 3}


def test_merged_and_waiting_proposals_are_needed(api: HfApi, needed: Callable, tmp_path: Path) -> None:
    """The commit of a merge has the title of the person, and no trailer of ours."""
    release(api, tmp_path, 1)
    release(api, tmp_path, 2, propose=True)
    api.merge_pull_request(REPO, 1, comment="Good.")
    assert "Publish-Id" not in api.list_repo_commits(REPO)[0].message
    api.create_commit(REPO, [CommitOperationAdd("NOTES.md", b"Ours.")], commit_message="Say whose it is")
    assert needed(1) == {2}
    release(api, tmp_path, 3, propose=True)
    assert needed(1) == {2, 3}
    api.change_discussion_status(REPO, 2, "closed")
    assert needed(1) == {2}
    assert needed(9) == {1, 2}


def test_tagged_release_that_main_has_lost_is_needed(api: HfApi, needed: Callable, tmp_path: Path) -> None:
    release(api, tmp_path, 1)
    api.create_branch(REPO, branch="once-main")
    record = json.dumps({"outs": [{"md5": rows(2)}]}).encode()
    api.create_commit(REPO, [CommitOperationAdd(FILE, record)], commit_message="A release", revision="once-main")
    api.create_tag(REPO, tag="v2", revision="once-main")
    api.delete_branch(REPO, branch="once-main")
    assert needed(1) == {1, 2}


def test_hub_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.releases.data_of_releases._TIMEOUT_S", 0.1)
    with pytest.raises((TransientError, HubRefusedError)):
        fetch_release_data_hashes(REPO, "http://127.0.0.1:9", last=1, must_exist=False)


def test_repository_that_had_releases_and_is_not_found_is_an_error(hub: FaultyHub) -> None:
    """A Hub says the same of a private repository to who may not read it."""
    with pytest.raises(HubRefusedError, match="models were published there"):
        fetch_release_data_hashes(REPO, hub.endpoint, last=1, must_exist=True)

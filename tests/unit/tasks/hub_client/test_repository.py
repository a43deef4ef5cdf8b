"""The head and the history of a repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from params.foundation.errors import HubRefusedError, StorageError, TransientError
from tasks.digests import weight_file_hashes, weights_digest
from tasks.hub_client.repository import HubRepository, PublishedModel
from tests.support.faulty_hub import Fault, FaultyHub
from tests.support.publications import REPO, patient, plan, publish


def test_head_is_the_model_on_main(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    assert HubRepository(api, REPO).head() is None
    api.create_repo(REPO)
    assert HubRepository(api, REPO).head() is None, "there are no weights"
    release = plan(folder)
    published = publish(api, release)
    api.create_tag(REPO, tag="a-nickname", revision=published.commit)
    assert HubRepository(api, REPO).head() == PublishedModel(
        published.commit, release.tag, weights_digest(weight_file_hashes(folder))
    )
    by_hand = api.create_commit(REPO, [CommitOperationAdd("NOTES", b"x")], commit_message="by hand")
    assert HubRepository(api, REPO).head() == PublishedModel(
        by_hand.oid, None, weights_digest(weight_file_hashes(folder))
    )
    with pytest.raises(HubRefusedError, match="401"):
        HubRepository(HfApi(endpoint=hub.endpoint, token="wrong-token-x"), REPO).head()
    hub.faults.append(Fault("GET .*/tree/", "lost", times=2))
    lines: list[str] = []
    assert patient(api, log=lines.append).head() is not None
    hub.faults.append(Fault("refs", "before", 503, times=99))
    with pytest.raises(TransientError, match="no clear answer after 3 attempts"):
        patient(api, attempts=3, log=lines.append).head()
    assert len(lines) == 3
    hub.faults[:] = [Fault("refs", "before", 507, times=99)]  # the disk of the Hub is full
    with pytest.raises(StorageError, match="507"):
        patient(api, attempts=3, log=lines.append).head()
    assert len(lines) == 3


def test_holds_only_commits_of_main(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    assert not HubRepository(api, REPO).holds("0" * 40)
    first = publish(api, plan(folder))
    (folder / "config.json").write_text("{}")
    publish(api, plan(folder))
    assert HubRepository(api, REPO).holds(first.commit)
    assert not HubRepository(api, REPO).holds("0" * 40)
    api.create_branch(REPO, branch="side", revision=first.commit)
    side = api.create_commit(REPO, [CommitOperationAdd("x", b"x")], commit_message="side", revision="side")
    assert not HubRepository(api, REPO).holds(side.oid)
    hub.faults.append(Fault("commits", "before", 500, times=99))
    with pytest.raises(TransientError, match="500"):
        patient(api).holds(first.commit)


def test_large_files_are_not_read(api: HfApi) -> None:
    api.create_repo(REPO)
    files = {"record.json": b"x" * 200, "notes.md": b"x" * 200}
    added = [CommitOperationAdd(path, content) for path, content in files.items()]
    commit = api.create_commit(REPO, added, commit_message="by hand").oid
    repository = HubRepository(api, REPO)
    assert repository.read(commit, "record.json", max_bytes=200) == b"x" * 200
    assert repository.read(commit, "gone.json", max_bytes=200) is None
    with pytest.raises(HubRefusedError, match=r"record.json of revision .* has 200 bytes, more than the 199"):
        repository.read(commit, "record.json", max_bytes=199)


def test_model_with_a_configuration_that_is_too_large_is_refused(api: HfApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.create_repo(REPO)
    added = [CommitOperationAdd("sub/tokenizer.json", b"x" * 200), CommitOperationAdd("a.safetensors", b"x" * 500)]
    commit = api.create_commit(REPO, added, commit_message="by hand").oid
    repository = HubRepository(api, REPO)
    repository.refuse_large_settings(commit, repository.tree(commit))
    monkeypatch.setattr("tasks.hub_client.repository.MAX_SETTINGS_BYTES", 100)
    with pytest.raises(HubRefusedError, match=r"sub/tokenizer\.json"):
        repository.refuse_large_settings(commit, repository.tree(commit))

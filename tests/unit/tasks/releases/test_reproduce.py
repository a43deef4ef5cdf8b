"""The weights of a release, compared with those that were made again."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from params import ModelError
from tasks.publishing.provenance import FILE
from tasks.releases.clone import ProvenanceRecord, ReproducibleRelease
from tasks.releases.reproduce import _compare, _read_release
from tests.support.faulty_hub import FaultyHub
from tests.support.publications import REPO, TOKEN

THEN, NOW = "1" * 64, "2" * 64
CONTENT = {
    "schema": 1,
    "recipe": {"name": "tiny", "text": "", "dvc_item": None},
    "run": "run",
    "git_commit": "c" * 40,
    "versions": {"torch": "0.1"},
    "data": {"revision": "main", "sha256": {}},
    "dvc_lock": None,
    "weights": {"a.safetensors": THEN},
}


@pytest.fixture
def release(caplog: pytest.LogCaptureFixture) -> ReproducibleRelease:
    caplog.set_level(logging.INFO)
    return ReproducibleRelease("me/model@c", ProvenanceRecord.model_validate(CONTENT), {"a.safetensors": THEN})


def test_equal_weights_are_said_to_be_equal(release, caplog) -> None:
    _compare(release, {"a.safetensors": THEN}, "run")
    assert f"a.safetensors is equal, SHA-256 {THEN}" in caplog.text
    assert "me/model@c: the weights are equal, bit for bit" in caplog.text


@pytest.mark.parametrize("rebuilt", [{"a.safetensors": NOW}, {}, {"a.safetensors": THEN, "b.safetensors": NOW}])
def test_different_weights_are_an_error_with_its_possible_causes(release, caplog, rebuilt) -> None:
    with pytest.raises(
        ModelError, match=r"the rebuilt weights are not those of the release: [ab]\.safetensors"
    ) as caught:
        _compare(release, rebuilt, "another")
    assert "DIFFERS" in caplog.text
    assert "torch was 0.1" in caught.value.fix
    assert "the run was run and is another" in caught.value.fix
    assert "bit for bit" not in caplog.text


def test_weights_count_by_their_content_with_git_lfs_and_without(
    api: HfApi, hub: FaultyHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    files = {".gitattributes": b"b.safetensors -filter\n", "a.safetensors": b"with", "b.safetensors": b"without"}
    files[FILE] = json.dumps(CONTENT).encode()
    api.create_repo(REPO)
    for name, content in files.items():
        api.create_commit(REPO, [CommitOperationAdd(name, content)], commit_message=name)
    entries = {one.path: one for one in api.list_repo_tree(REPO)}
    assert (entries["a.safetensors"].lfs is None, entries["b.safetensors"].lfs is None) == (False, True)
    found = _read_release(tmp_path, f"{REPO}@main", hub.endpoint)
    assert found.weights == {
        name: hashlib.sha256(files[name]).hexdigest() for name in ("a.safetensors", "b.safetensors")
    }

"""The weights of a release, compared with those that were made again."""

from __future__ import annotations

import logging

import pytest

from params import ModelError
from tasks.releases.clone import ProvenanceRecord, ReproducibleRelease
from tasks.releases.reproduce import _compare

THEN, NOW = "1" * 64, "2" * 64


@pytest.fixture
def release(caplog: pytest.LogCaptureFixture) -> ReproducibleRelease:
    caplog.set_level(logging.INFO)
    content = {
        "schema": 1,
        "recipe": {"name": "tiny", "text": "", "dvc_item": None},
        "run": "run",
        "git_commit": "c" * 40,
        "versions": {"torch": "0.1"},
        "data": {"revision": "main", "sha256": {}},
        "dvc_lock": None,
        "weights": {"a.safetensors": THEN},
    }
    return ReproducibleRelease("me/model@c", ProvenanceRecord.model_validate(content), {"a.safetensors": THEN})


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

"""A file that a repository does not have is told from a Hub that does not answer, whatever the client's cache holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from params.schema import Model
from tasks.hub_client.cached_files import fetch_if_there
from tasks.hub_server.server import LocalHub
from tasks.lineage.ancestors import _find_hub_model
from tests.support.faulty_hub import quick_client

REPO = "tests/base"


def test_a_hub_that_does_not_answer_does_not_say_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with quick_client(), LocalHub(tmp_path / "hub", tokens={"hf_t": "tests"}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        api = HfApi(endpoint=hub.endpoint, token="hf_t")
        api.create_repo(REPO)
        for name in ("config.json", "asked.json"):
            api.upload_file(path_or_fileobj=b"{}", path_in_repo=name, repo_id=REPO)
        commit = api.repo_info(REPO).sha
        hf_hub_download(REPO, "config.json", endpoint=hub.endpoint)  # as whoever loads the weights
        assert fetch_if_there(REPO, "none.json", commit) is None
        assert Path(str(fetch_if_there(REPO, "asked.json"))).read_bytes() == b"{}"
        with pytest.raises(RepositoryNotFoundError):
            fetch_if_there("tests/nothing", "none.json")
        assert _find_hub_model(Model(pretrained=REPO), commit) is None
    monkeypatch.setattr("huggingface_hub.file_download._ETAG_RETRY_TIMEOUT", 0.1)
    for is_offline in (True, False):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        with quick_client():
            assert fetch_if_there(REPO, "none.json", commit) is None, "it has said so of this commit"
            assert fetch_if_there(REPO, "asked.json", commit) is not None
            with pytest.raises(LocalEntryNotFoundError):
                fetch_if_there(REPO, "never-asked.json", commit)
            assert _find_hub_model(Model(pretrained=REPO), commit) is None, "it was asked while it answered"
            unknown = _find_hub_model(Model(pretrained="tests/other"), None)
        assert unknown
        assert "its Hub did not say whether it is a release" in unknown.unknown

"""Who can use the local Hub that a stage serves for itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from params.artifacts import Artifacts
from tasks.hub_client.connection import LOCAL, open_repository

REPO = "tests/model"


def test_only_the_stage_itself_can_use_its_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    artifacts = Artifacts("tiny", root=tmp_path)
    tokens = []
    for _ in range(2):
        with open_repository(artifacts, repo_id=REPO, endpoint=LOCAL) as repository:
            repository.api.create_repo(REPO, private=True, exist_ok=True)
            tokens.append(str(repository.api.token))
            for token in ("hf_local", tokens[0] if len(tokens) == 2 else "hf_other"):
                other_user = HfApi(endpoint=repository.api.endpoint, token=token)
                for call in (other_user.list_repo_refs, other_user.delete_repo):
                    with pytest.raises(HfHubHTTPError) as raised:
                        call(REPO)
                    assert raised.value.response.status_code == 401
            assert repository.api.repo_exists(REPO)
    assert tokens[0] != tokens[1]
    assert min(map(len, tokens)) > 40

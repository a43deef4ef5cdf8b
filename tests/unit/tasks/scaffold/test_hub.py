"""Data and a model on a Hub: the real client against the local Hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi

from params import HubRefusedError, ModelError, RecipeError, TransientError
from params.sections.data import RowsFromHubDataset
from tasks.hub_server.server import LocalHub
from tasks.scaffold.look import read_source_sample
from tasks.scaffold.model_facts import read_model_facts
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source
from tests.support.faulty_hub import quick_client
from tests.support.pretrained import write_model


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HfApi]:
    """The client of a local Hub, with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "token-of-alice")
    with LocalHub(tmp_path / "hub", tokens={"token-of-alice": "alice"}) as hub, quick_client():
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.endpoint)
        template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield HfApi(hub.endpoint, token="token-of-alice")


def push(api: HfApi, repo_id: str, kind: str, folder: Path) -> str:
    api.create_repo(repo_id, repo_type=kind, exist_ok=True, private=True)
    return str(api.upload_folder(repo_id=repo_id, repo_type=kind, folder_path=folder).oid)


def test_a_dataset_is_followed_or_pinned(api: HfApi, tmp_path: Path) -> None:
    (tmp_path / "files" / "data").mkdir(parents=True)
    for name in ("train-0", "train-1", "test"):
        (tmp_path / "files/data" / f"{name}.jsonl").write_text(f'{{"text": "{name}", "label": 1}}\n')
    (tmp_path / "files/notes.md").write_text("# Rows\n")
    commit = push(api, "alice/rows", "dataset", tmp_path / "files")
    for data, revision in (
        ("alice/rows", "main"),
        ("hub:alice/rows@main", "main"),
        (f"alice/rows@{commit}", commit),
    ):
        found = find_source(NewRecipeRequest("x", data), tmp_path)
        assert isinstance(found.source, RowsFromHubDataset)
        assert (found.source.revision, found.watched) == (revision, "tasks/ingestion/hub_dataset.py")
        assert found.source.patterns == {"train": "data/train-*.jsonl", "test": "data/test.jsonl"}
    sample = read_source_sample(found.source)
    assert [row["text"] for row in sample.rows["train"]] == ["train-0", "train-1"]
    assert sample.totals == {"train": 2, "test": 1}
    with pytest.raises(RecipeError, match="has no revision nothing"):
        find_source(NewRecipeRequest("x", "alice/rows@nothing"), tmp_path)
    with pytest.raises(HubRefusedError, match="does not exist, or is private"):
        find_source(NewRecipeRequest("x", "alice/nothing"), tmp_path)


def test_a_model_is_pinned_and_not_downloaded(api: HfApi, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    commit = push(api, "alice/model", "model", folder)
    facts = read_model_facts("alice/model")
    own = read_model_facts(str(folder))
    assert (facts.path, facts.revision) == ("alice/model", commit)
    assert (facts.parameters, facts.kind, facts.positions) == (own.parameters, own.kind, own.positions)
    assert read_model_facts(f"alice/model@{commit}").revision == commit
    assert list((tmp_path / "cache").rglob("*.safetensors")) == []
    (folder / "model.safetensors").unlink()
    api.delete_file("model.safetensors", "alice/model")
    with pytest.raises(ModelError, match="no weights as safetensors"):
        read_model_facts("alice/model")


def test_a_hub_that_does_not_answer_is_worth_another_try(
    api: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TransientError, match="the Hub cannot be reached"):
        find_source(NewRecipeRequest("x", "alice/rows"), tmp_path)

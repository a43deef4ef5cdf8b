"""Lists of repositories, and what is said about each one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

CARD = "---\nlicense: {license}\nlibrary_name: transformers\npipeline_tag: {task}\nlanguage: [en, de]\ntags: [{tag}]\n---\n"
DATA_CARD = "---\nlicense: mit\nlanguage: ru\ntask_categories: [text-classification]\nsize_categories: [n<1K]\n---\n"


@pytest.fixture(autouse=True)
def repositories(alice: HfApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three models, of which `first` has the newest commit, and a dataset."""
    clock = iter(range(1_800_000_000, 1_900_000_000, 60))
    monkeypatch.setattr("tasks.hub_server.git_objects.time.time", lambda: next(clock))
    for name, license_, task, tag in (
        ("first", "mit", "text-classification", "fresh"),
        ("second", "apache-2.0", "text-classification", "old"),
        ("third", "mit", "text-generation", "old"),
    ):
        alice.create_repo(f"alice/{name}")
        card = CARD.format(license=license_, task=task, tag=tag).encode()
        alice.create_commit(f"alice/{name}", [Add("README.md", card)], commit_message="card")
    alice.create_commit("alice/first", [Add("a.txt", b"a")], commit_message="newest")
    alice.create_repo("team/data", repo_type="dataset")
    alice.create_commit("team/data", [Add("README.md", DATA_CARD.encode())], commit_message="card", repo_type="dataset")


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        ({}, "first second third"),
        ({"filter": "fresh"}, "first"),
        ({"filter": ["license:mit", "old"]}, "third"),
        ({"filter": "text-classification"}, "first second"),
        ({"filter": "de", "pipeline_tag": "text-generation"}, "third"),
        ({"filter": "fr"}, ""),
        ({"pipeline_tag": "text-classification", "search": "SEC"}, "second"),
        ({"trained_dataset": "squad"}, ""),
        ({"limit": 2}, "first second"),
    ],
)
def test_models_are_listed_by_conditions(alice: HfApi, conditions: dict[str, object], names: str) -> None:
    found = [model.id for model in alice.list_models(**conditions)]
    assert found == [f"alice/{name}" for name in names.split()]


@pytest.mark.parametrize(
    ("conditions", "is_found"),
    [
        ({"language": "ru", "task_categories": "text-classification"}, True),
        ({"size_categories": ["n<1K"], "filter": "license:mit"}, True),
        ({"language": "en"}, False),
        ({"dataset_name": "DAT", "search": "team"}, True),
        ({"dataset_name": "dat", "search": "alice"}, False),
    ],
)
def test_datasets_are_listed_by_conditions(alice: HfApi, conditions: dict[str, object], is_found: bool) -> None:
    assert [data.id for data in alice.list_datasets(**conditions)] == ["team/data"] * is_found


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [
        ({"sort": "downloads"}, "no lists by sort, only by author"),
        ({"gated": True}, "no lists by gated"),
        ({"num_parameters": "min:6B"}, "no lists by num_parameters, only by author"),
        ({"inference": "warm"}, "no lists by inference"),
        ({"apps": "ollama"}, "no lists by apps"),
        ({"fetch_config": True}, "no lists by config"),
        ({"expand": ["gguf"]}, "no lists by expand"),
    ],
)
def test_conditions_that_the_hub_cannot_tell_are_refused(
    alice: HfApi, conditions: dict[str, object], sentence: str
) -> None:
    with pytest.raises(HfHubHTTPError, match=f"The local Hub has {sentence}") as raised:
        list(alice.list_models(**conditions))
    assert raised.value.response.status_code == 501


def test_descriptions_have_what_the_client_reads(alice: HfApi) -> None:
    (brief,) = alice.list_models(filter="fresh")
    assert {"fresh", "transformers", "text-classification", "license:mit", "en"} <= set(brief.tags)
    assert (brief.pipeline_tag, brief.library_name, brief.private) == ("text-classification", "transformers", False)
    assert (brief.card_data.license, brief.siblings) == ("mit", None)
    assert brief.created_at < brief.last_modified
    (full,) = alice.list_models(filter="fresh", full=True, cardData=True)
    assert [sibling.rfilename for sibling in full.siblings] == [".gitattributes", "README.md", "a.txt"]
    assert full.sha == alice.model_info("alice/first").sha
    (data,) = alice.list_datasets(full=True)
    assert (data.card_data.license, len(data.siblings)) == ("mit", 2)
    info = alice.model_info("alice/first", expand=["private", "tags"])
    assert (info.private, info.tags) == (False, brief.tags)
    with_blobs = alice.model_info("alice/first", files_metadata=True)
    assert [each.size for each in with_blobs.siblings][-1] == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda api: api.model_info("alice/first", expand=["safetensors"]),
        lambda api: list(api.list_repo_tree("alice/first", expand=True)),
        lambda api: api.get_paths_info("alice/first", ["a.txt"], expand=True),
        lambda api: api.list_repo_commits("alice/first", formatted=True),
    ],
)
def test_details_that_the_hub_cannot_tell_are_refused(alice: HfApi, ask: Callable[[HfApi], object]) -> None:
    with pytest.raises(HfHubHTTPError, match="The local Hub has no ") as raised:
        ask(alice)
    assert raised.value.response.status_code == 501

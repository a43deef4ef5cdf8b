"""Lists of repositories, and what is said about each one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import CommitOperationDelete as Delete
from huggingface_hub import HfApi, RepoFolder
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
    ],
)
def test_details_that_the_hub_cannot_tell_are_refused(alice: HfApi, ask: Callable[[HfApi], object]) -> None:
    with pytest.raises(HfHubHTTPError, match="The local Hub has no ") as raised:
        ask(alice)
    assert raised.value.response.status_code == 501


def test_files_and_folders_have_their_last_commits(alice: HfApi) -> None:
    repo = "alice/first"
    for title, operations in (
        ("one", [Add("f/1.txt", b"1"), Add("f/g/2.txt", b"2"), Add("gone.txt", b"x")]),
        ("two", [Add("f/g/2.txt", b"22")]),
        ("three", [Delete("gone.txt"), Add("model.safetensors", b"w")]),
        ("four", [Add("a.txt", b"aa")]),
    ):
        alice.create_commit(repo, operations, commit_message=title)
    expected = {"f": "two", "f/g": "two", "f/g/2.txt": "two", "f/1.txt": "one", "model.safetensors": "three"}
    expected |= {"a.txt": "four", "README.md": "card", ".gitattributes": "initial commit"}
    tree = list(alice.list_repo_tree(repo, recursive=True, expand=True))
    assert {entry.path: entry.last_commit.title for entry in tree} == expected
    assert {entry.path for entry in tree if isinstance(entry, RepoFolder)} == {"f", "f/g"}
    four = alice.list_repo_commits(repo)[0]
    (found,) = alice.get_paths_info(repo, ["a.txt", "none.txt"], expand=True)
    assert (found.last_commit.oid, found.last_commit.date, found.security) == (four.commit_id, four.created_at, None)
    assert all(entry.last_commit is None for entry in alice.list_repo_tree(repo, recursive=True))


def test_commits_are_formatted(alice: HfApi) -> None:
    repo = "alice/first"
    alice.create_commit(repo, [Add("x", b"x")], commit_message="a <b> & c", commit_description="one\n<i>two</i>")
    commits = alice.list_repo_commits(repo, formatted=True)
    assert len(commits) == 4
    assert (commits[0].title, commits[0].formatted_title) == ("a <b> & c", "a &lt;b&gt; &amp; c")
    assert commits[0].formatted_message == "one<br>&lt;i&gt;two&lt;/i&gt;"
    assert commits[-1].formatted_title == "initial commit"
    assert {commit.formatted_title for commit in alice.list_repo_commits(repo)} == {None}, "not asked for"

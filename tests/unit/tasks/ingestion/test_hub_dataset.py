"""A Hub dataset as a source: the real client against the local Hub."""

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub.constants
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

from params import DataError, HubRefusedError, RecipeError, TransientError
from params.foundation.artifacts import Artifacts
from params.schema import Launch
from params.sections.data import Data, RowsFromHubDataset
from tasks.hub_server.server import LocalHub
from tasks.ingestion.source import open_source
from tasks.ingestion.stage import ingest
from tests.support.faulty_hub import quick_client


@pytest.fixture(autouse=True)
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache, a token, and no pauses between the client's retries."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "token-of-alice")
    with quick_client():
        yield


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "hub", tokens={"token-of-alice": "alice", "token-of-bob": "bob"}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


@pytest.fixture
def commit(hub: LocalHub) -> str:
    api = HfApi(endpoint=hub.endpoint, token="token-of-alice")
    api.create_repo("alice/notes", repo_type="dataset", private=True)
    files = {
        "data/train-0.jsonl": b'{"text": "a"}\n{"text": "b"}\n',
        "data/train-1.jsonl": b'{"text": "c"}\n',
        "test.csv": b"text\nt\n",
        "notes.txt": b"Notes\n",
    }
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    done = api.create_commit("alice/notes", operations, commit_message="Add", repo_type="dataset")
    api.create_commit(
        "alice/notes",
        [CommitOperationAdd("data/train-1.jsonl", b'{"text": "later"}\n')],
        commit_message="Change",
        repo_type="dataset",
    )
    return done.oid


def section(hub: LocalHub, commit: str, **source: Any) -> RowsFromHubDataset:
    fields = {"kind": "hub", "repo_id": "alice/notes", "train": "data/train-*.jsonl", "endpoint": hub.endpoint}
    return RowsFromHubDataset.model_validate(fields | {"revision": commit} | source)


def read(source: RowsFromHubDataset, split: str = "train") -> list[str]:
    return [row["text"] for batch in open_source(source).batches(split) for row in batch.rows.to_pylist()]


def test_rows_come_from_the_commit_and_only_matching_files_are_fetched(
    hub: LocalHub, commit: str, tmp_path: Path
) -> None:
    source = section(hub, commit, test="**/*.csv")
    assert read(source) == ["a", "b", "c"]
    assert read(source, "test") == ["t"]
    assert open_source(source).revision == commit
    fetched = {path.name for path in (tmp_path / "cache").rglob("snapshots/*/**/*")}
    assert fetched == {commit, "data", "train-0.jsonl", "train-1.jsonl", "test.csv"} - {commit}


def test_ingest_reads_a_hub_dataset(hub: LocalHub, commit: str, tmp_path: Path) -> None:
    data = Data(
        source=section(hub, commit, test="test.csv", validation="data/train-1.jsonl", train="data/train-0.jsonl")
    )
    report = ingest(Artifacts("r", tmp_path), data=data, seed=1, launch=Launch(micro_batch_size=1))
    assert (report.source, report.revision) == ("hub", commit)
    assert report.rows == {"train": 2, "validation": 1, "test": 1}


def test_pattern_without_files_is_an_error(hub: LocalHub, commit: str) -> None:
    with pytest.raises(
        DataError, match=rf"data.source.train: nothing/\*.csv: no file matches in alice/notes at {commit}"
    ):
        read(section(hub, commit, train="nothing/*.csv"))


def test_branch_is_resolved_to_its_newest_commit(hub: LocalHub, commit: str) -> None:
    source = open_source(section(hub, "main"))
    newest = HfApi(endpoint=hub.endpoint, token="token-of-alice").list_repo_commits("alice/notes", repo_type="dataset")[
        0
    ]
    assert source.revision == newest.commit_id != commit
    assert list(source.batches("train"))
    with pytest.raises(RecipeError, match="datasets/alice/notes: has no revision nowhere"):
        _ = open_source(section(hub, "nowhere")).revision


def test_unknown_commit_is_an_error(hub: LocalHub, commit: str) -> None:
    with pytest.raises(RecipeError, match=rf"datasets/alice/notes: has no revision {'0' * 40}"):
        read(section(hub, "0" * 40))


def test_missing_or_private_dataset_is_refused(hub: LocalHub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubRefusedError, match=r"datasets/alice/nothing: does not exist, or is private"):
        read(section(hub, commit, repo_id="alice/nothing"))
    monkeypatch.setenv("HF_TOKEN", "token-of-bob")
    with pytest.raises(HubRefusedError, match=r"datasets/alice/notes: does not exist, or is private"):
        read(section(hub, commit))
    monkeypatch.setenv("HF_TOKEN", "wrong-token")
    with pytest.raises(HubRefusedError, match=r"HF_TOKEN") as caught:
        read(section(hub, commit))
    assert "wrong-token" not in str(caught.value)


def test_unreachable_hub_is_a_transient_error(hub: LocalHub, commit: str) -> None:
    with pytest.raises(TransientError, match=r"127.0.0.1:1/datasets/alice/notes: the Hub cannot be reached: Connect"):
        read(section(hub, commit, endpoint="http://127.0.0.1:1"))


def test_cached_dataset_works_offline(hub: LocalHub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.hub_client.time_limits.is_loopback", lambda host: False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"is not in the local cache, and HF_HUB_OFFLINE forbids"):
        read(section(hub, commit))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    read(section(hub, commit))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert read(section(hub, commit)) == ["a", "b", "c"]
    with pytest.raises(DataError, match=r"is not in the local cache, and HF_HUB_OFFLINE forbids"):
        read(section(hub, commit, train="notes.txt"))


@pytest.mark.parametrize("pattern", ["../../secret.csv", "/etc/secret.csv"])
def test_pattern_outside_the_repository_is_refused(hub: LocalHub, commit: str, pattern: str) -> None:
    with pytest.raises(RecipeError, match=r"points outside the repository"):
        open_source(section(hub, commit, train=pattern))


@pytest.mark.parametrize(
    ("kind", "status", "expected", "message"),
    [
        (GatedRepoError, 403, HubRefusedError, "it is gated"),
        (HfHubHTTPError, 403, HubRefusedError, "refuses access (403)"),
        (HfHubHTTPError, 404, DataError, "answers 404"),
        (HfHubHTTPError, 429, TransientError, "answers 429"),
        (HfHubHTTPError, 503, TransientError, "answers 503"),
        (httpx2.ReadError, 0, TransientError, "cannot be reached: ReadError"),
        (socket.gaierror, 0, TransientError, "cannot be reached: gaierror"),
        (http.client.IncompleteRead, 0, TransientError, "cannot be reached: IncompleteRead"),
    ],
)
def test_hub_error_answers(
    hub: LocalHub, commit: str, monkeypatch: pytest.MonkeyPatch, kind: Any, status: int, expected: type, message: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        if not status:
            raise kind("lost")
        raise kind("no", response=httpx2.Response(status, request=httpx2.Request("GET", "http://x")))

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(expected) as caught:
        read(section(hub, commit))
    assert message in str(caught.value)

"""Data that changes where it comes from: imported files, and the branch of a Hub dataset. The flow asks, and runs what is stale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi

from params.dvc_files import read_dvc_lock_stages
from tasks.hub_server.server import LocalHub
from tests.support.project import STAGES, Project, stages_of, write_sentences
from tests.support.sharing import RECORD, TOKEN, sharing

FILES = "kind: files, train: data/sentences.csv"
REFRESHED = f"{FILES}, refresh: true"
DATASET = "tests/sentences"

INGEST = """\
import logging, sys
from flows.run import stages
logging.basicConfig(level="INFO", stream=sys.stdout, force=True)
try:
    print("outcome:", stages.bring_up_to_date("ingest", "tiny", logging.getLogger()))
except Exception as error:
    print("outcome:", type(error).__name__, error)
"""
"""What the flow does first, without Prefect."""


def ingest(project: Project) -> str:
    """The outcome of the stage ingest: what it did, or its error."""
    return project.run("python", "-c", INGEST).partition("outcome: ")[2].split()[0]


def rows(project: Project) -> int:
    return sum(project.json("runs/tiny/raw/source.json")["rows"].values())


def import_rows(project: Project, origin: Path, rows: int = 300) -> None:
    """Let the recipe refresh its file of rows, which comes from elsewhere."""
    write_sentences(origin, rows)
    (project.root / "data/sentences.csv").unlink()
    project.run("dvc", "import-url", "-q", str(origin), "data/sentences.csv")
    project.edit("params/tiny.yaml", FILES, REFRESHED)


def take_dataset(project: Project, hub: LocalHub) -> None:
    """Let the recipe read a branch of a dataset."""
    source = f"kind: hub, repo_id: {DATASET}, revision: main, train: '*.csv', endpoint: '{hub.endpoint}'"
    project.edit("params/tiny.yaml", FILES, source)


def push_rows(api: HfApi, folder: Path, rows: int) -> str:
    """Push rows to the branch of the dataset, and return the commit."""
    write_sentences(folder / "sentences.csv", rows)
    api.create_repo(DATASET, repo_type="dataset", exist_ok=True)
    file = {"path_or_fileobj": folder / "sentences.csv", "path_in_repo": "sentences.csv"}
    return str(api.upload_file(**file, repo_id=DATASET, repo_type="dataset").oid)


def recorded(project: Project, path: str) -> str:
    """The hash of an output in dvc.lock."""
    outs = read_dvc_lock_stages(project.root)["ingest@tiny"]["outs"]
    return str(next(out["md5"] for out in outs if out["path"] == path))


@pytest.fixture
def given_up(project: Project) -> Project:
    """A project that keeps rows for no time: here nothing finishes a run."""
    project.edit("params/tiny.yaml", "launch: {", "launch: {keep_rows_hours: 0, ")
    return project


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    with LocalHub(tmp_path / "hub", tokens={TOKEN: "tests"}) as running:
        yield running


def test_imported_files_are_followed(given_up: Project, tmp_path: Path) -> None:
    origin = tmp_path / "origin.csv"
    import_rows(given_up, origin)
    assert ingest(given_up) == "ran"
    assert ingest(given_up) == "unchanged"
    write_sentences(origin, 320)
    assert ingest(given_up) == "ran"
    assert rows(given_up) == 320
    origin.unlink()
    assert ingest(given_up) == "DataError"
    assert len((given_up.root / "data/sentences.csv").read_text().splitlines()) == 321


def test_the_branch_of_a_dataset_is_followed(given_up: Project, hub: LocalHub, tmp_path: Path) -> None:
    take_dataset(given_up, hub)
    given_up.environment |= {"HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.endpoint}
    api = HfApi(endpoint=hub.endpoint, token=TOKEN)
    first = push_rows(api, tmp_path, 300)
    assert ingest(given_up) == "ran"
    assert given_up.json("runs/tiny/raw/source.json")["revision"] == first
    assert ingest(given_up) == "unchanged"
    known = recorded(given_up, "runs/tiny/raw")

    second = push_rows(api, tmp_path, 320)
    assert ingest(given_up) == "ran"
    assert given_up.json("runs/tiny/raw/source.json")["revision"] == second
    assert recorded(given_up, "runs/tiny/raw") != known
    assert rows(given_up) == 320


def run(worker: Project, *options: str, ok: bool = True) -> str:
    return worker.run("python", "-m", "flows.cli", "run", "tiny", *options, *RECORD, ok=ok)


@pytest.mark.slow
def test_workers_follow_imported_files(tmp_path: Path, prefect_home: Path) -> None:
    """They share nothing but the remotes; the record of a run has the import that it has refreshed."""
    origin = tmp_path / "origin.csv"
    hub = LocalHub(tmp_path / "hub", tokens={TOKEN: "tests"})
    with sharing(tmp_path, prefect_home, hub, lambda author: import_rows(author, origin)) as shared:
        assert stages_of(run(shared.worker("first"))) == list(STAGES)
        idle = shared.worker("idle")
        assert stages_of(run(idle)) == []
        assert not (idle.root / "data/sentences.csv").exists()
        assert len(shared.commits()) == 2

        write_sentences(origin, 360)
        second = shared.worker("second")
        assert stages_of(run(second)) == list(STAGES)
        assert rows(second) == 360
        assert len(shared.commits()) == 3
        for clone in (shared.worker("third"), shared.worker("fourth")):
            assert stages_of(run(clone)) == []
            assert clone.run("git", "status", "--porcelain") == ""
        assert len(shared.commits()) == 3
        origin.rename(tmp_path / "away")
        assert clone.repro("--pull") == []
        assert len((clone.root / "data/sentences.csv").read_text().splitlines()) == 361
        assert clone.run("git", "status", "--porcelain") == ""
        assert "is not there any more" in run(clone, ok=False)

        (tmp_path / "away").rename(origin)
        edited = shared.worker("edited")
        edited.edit("params/tiny.yaml", "seed: 3", "seed: 4")
        assert stages_of(run(edited))[:4] == list(STAGES[:4]), "with the files, which were not there"


@pytest.mark.slow
def test_workers_follow_the_branch_of_a_dataset(tmp_path: Path, prefect_home: Path) -> None:
    hub = LocalHub(tmp_path / "hub", tokens={TOKEN: "tests"})
    with sharing(tmp_path, prefect_home, hub, lambda author: take_dataset(author, hub)) as shared:
        commit = push_rows(shared.api, tmp_path, 300)
        first = shared.worker("first")
        assert stages_of(run(first)) == list(STAGES)
        assert first.json("runs/tiny/raw/source.json")["revision"] == commit
        idle = shared.worker("idle")
        assert stages_of(run(idle)) == [], "in a new clone, too"
        assert stages_of(run(first)) == []
        assert len(shared.commits()) == 2

        commit = push_rows(shared.api, tmp_path, 360)
        assert stages_of(run(idle)) == list(STAGES)
        assert idle.json("runs/tiny/raw/source.json")["revision"] == commit
        assert len(shared.commits()) == 3
        last = shared.worker("last")
        assert recorded(last, "runs/tiny/raw") == recorded(idle, "runs/tiny/raw") != recorded(first, "runs/tiny/raw")
        assert stages_of(run(last)) == []
        assert last.repro("--pull") == []
        first.run("git", "fetch", "-q")
        first.run("git", "reset", "-q", "--hard", "origin/main")
        assert stages_of(run(first)) == [], "in a clone that has read an earlier commit"
        assert len(shared.commits()) == 3

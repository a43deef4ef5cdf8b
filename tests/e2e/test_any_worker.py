"""Workers that share nothing but a git remote, a DVC remote and a Hub: what one has done, no other does again.

The tests share the remotes, and stand in the order in which they change them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file

from tasks.hub_server.server import LocalHub
from tests.support.project import STAGES, Project, stages_of
from tests.support.sharing import RECORD, TOKEN, Shared, sharing

pytestmark = pytest.mark.in_order


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    with sharing(folder, prefect_home, LocalHub(folder / "hub", tokens={TOKEN: "tests"})) as made:
        yield made


@pytest.fixture(scope="module")
def first(shared: Shared) -> Project:
    return shared.worker("first")


def run(worker: Project, *options: str) -> str:
    return worker.run("python", "-m", "flows.cli", "run", "tiny", *options)


def objects(worker: Project) -> set[str]:
    """The hashes of the objects in a worker's cache, without the lists of the files in a folder."""
    found = {"".join(path.parts[-2:]) for path in (worker.root / ".dvc/cache/files/md5").glob("*/*")}
    return {value for value in found if not value.endswith(".dir")}


def outputs(worker: Project, *paths: str) -> set[str]:
    """The hashes of the files in these outputs of the last run, by the lists of a worker that has them."""
    recorded = YAML(typ="safe").load(worker.root / "dvc.lock")["stages"].values()
    hashes = {out["path"].removeprefix("runs/tiny/"): out["md5"] for entry in recorded for out in entry["outs"]}
    found: set[str] = set()
    for path in paths:
        value = hashes[path]
        listed = YAML(typ="safe").load(worker.root / ".dvc/cache/files/md5" / value[:2] / value[2:])
        found |= {entry["md5"] for entry in listed}
    return found


def test_a_run_is_recorded_and_the_checkout_stays_as_it_is(shared: Shared, first: Project) -> None:
    head = first.run("git", "rev-parse", "HEAD")
    out = run(first, *RECORD)
    assert stages_of(out) == list(STAGES)
    release = first.json("runs/tiny/release/receipt.json")["tag"]
    assert shared.commits() == [f"Record tiny: published {release}", "the project"]
    assert first.run("git", "rev-parse", "HEAD") == head
    run(first, *RECORD)
    assert len(shared.commits()) == 2, "the same run again"


def test_another_worker_has_nothing_to_do_and_fetches_no_file(shared: Shared) -> None:
    other = shared.worker("other")
    start = time.monotonic()
    out = run(other, *RECORD)
    assert time.monotonic() - start < 30  # 5 s alone on two cores
    assert stages_of(out) == []
    assert "nothing has changed since the last run" in out
    assert objects(other) == set()
    assert len(shared.commits()) == 2
    assert other.repro("--pull", "--allow-missing") == []
    assert other.run("git", "status", "--porcelain") == ""


def test_a_clone_of_what_was_recorded_is_one_of_dvc(shared: Shared) -> None:
    user = shared.worker("user")
    assert user.repro("--pull") == []
    assert user.run("git", "status", "--porcelain") == ""


@pytest.mark.slow
def test_only_the_champion_has_changed(shared: Shared, first: Project, tmp_path: Path) -> None:
    path = shared.api.hf_hub_download("tests/tiny", "model.safetensors", local_dir=tmp_path)
    save_file({name: -weight for name, weight in load_file(path).items()}, path, {"format": "pt"})
    shared.api.upload_file(path_or_fileobj=path, path_in_repo="model.safetensors", repo_id="tests/tiny")

    judge = shared.worker("judge")
    out = run(judge, *RECORD)
    assert stages_of(out) == ["evaluate", "publish"]
    assert judge.json("runs/tiny/evaluation/blessing.json")["verdict"] == "publish"
    raw = outputs(first, "raw")
    shared_with_raw = outputs(first, "validated", "tokens", "model")
    only_raw = raw - outputs(first, "validated")  # a shard without bad rows is one object of both
    assert len(only_raw & objects(judge)) == 1, "of the rows as they came only the report on their source is read"
    assert not (outputs(first, "checkpoint") - shared_with_raw) & objects(judge)
    assert shared.commits()[0].startswith("Record tiny: published release-")
    assert len(shared.commits()) == 3


@pytest.mark.slow
def test_new_rows_are_trained_on_once(shared: Shared, first: Project) -> None:
    shared.add_rows(360)

    second = shared.worker("second")
    assert stages_of(run(second, *RECORD)) == list(STAGES)
    assert shared.commits()[0].startswith("Record tiny: ")
    assert shared.commits()[1] == "new rows"

    before = objects(first)
    first.run("git", "fetch", "-q")
    first.run("git", "reset", "-q", "--hard", "origin/main")
    assert stages_of(run(first, *RECORD)) == []
    assert objects(first) == before
    assert first.run("git", "status", "--porcelain") == ""
    assert first.json("runs/tiny/release/receipt.json") == second.json("runs/tiny/release/receipt.json")


@pytest.mark.slow
def test_what_git_refused_is_not_done_again(shared: Shared) -> None:
    """Its work is on the DVC remote, and on the Hub."""
    hook = shared.git / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    unlucky = shared.worker("unlucky")
    unlucky.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 30")
    out = unlucky.run("python", "-m", "flows.cli", "run", "tiny", *RECORD, ok=False)
    assert "RemoteRefusedError: origin/main: refused the commit" in out
    assert "Traceback" not in out
    before = shared.commits()
    hook.unlink()

    later = shared.worker("later")
    later.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 30")
    out = run(later, *RECORD)
    assert stages_of(out) == ["evaluate", "publish"], "what depends on the Hub"
    assert "train: restored" in out
    assert shared.commits()[1:] == before


@pytest.mark.slow
def test_what_cannot_be_recorded_is_not_published(shared: Shared) -> None:
    """Otherwise the error that its verdict has spent would be forgotten with it."""

    def published() -> int:
        return len(shared.api.list_repo_commits("tests/tiny"))

    night, before = shared.worker("night"), published()
    night.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 40")
    night.edit("params/tiny.yaml", "resamples: 200", "resamples: 200, margin: 9.0")
    night.run("git", "remote", "set-url", "--push", "origin", "/nowhere")
    out = night.run("python", "-m", "flows.cli", "run", "tiny", *RECORD, ok=False)
    assert night.json("runs/tiny/evaluation/blessing.json")["verdict"] == "publish"
    assert "RemoteRefusedError: origin/main: cannot push to the branch" in out
    assert published() == before

    hook = shared.git / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    night.run("git", "remote", "set-url", "--push", "origin", str(shared.git))
    night.edit("params/tiny.yaml", "resamples: 200,", "over: test_rows, resamples: 200,")
    out = night.run("python", "-m", "flows.cli", "run", "tiny", *RECORD, ok=False)
    assert night.json("runs/tiny/evaluation/blessing.json")["row_use"]["uses"] == 0
    assert "refused the commit" in out
    assert published() == before
    hook.unlink()

    run(night, *RECORD)
    assert published() == before + 1
    assert shared.commits()[0].startswith("Record tiny: published")
    assert shared.commits()[1] == "Record tiny: evaluated, verdict publish"

"""DVC and the flow run the same stages: whichever came last, the other finds nothing to do.

The tests share one project and stand in the order in which they change it.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.support.project import STAGES, Project

ALL = list(STAGES)


def test_the_flow_says_what_there_is_now(finished: Project) -> None:
    receipt = finished.json("runs/tiny/release/receipt.json")
    assert receipt["status"] == "published"
    assert receipt["repo_id"] == "tests/tiny"
    for words in (receipt["repo_id"], receipt["commit"], receipt["tag"], "perplexity", "runs/tiny/report.html"):
        assert words in finished.first_run
    assert (finished.root / "runs/tiny/report.html").exists()
    assert (finished.root / "runs/tiny/validated/report.html").exists()
    metrics = finished.json("runs/tiny/evaluation/metrics.json")
    assert metrics["model"]["perplexity"] < metrics["untrained"]["perplexity"] / 2


def test_after_the_flow_dvc_runs_nothing(finished: Project) -> None:
    lock = (finished.root / "dvc.lock").read_bytes()
    assert finished.repro() == []
    assert (finished.root / "dvc.lock").read_bytes() == lock


def test_git_has_nothing_of_a_run_but_its_lock_blessing_receipt_and_log(finished: Project) -> None:
    finished.run("git", "add", "-A")
    tracked = finished.run("git", "ls-files", "runs", "dvc.lock").split()
    blessing, release = "runs/tiny/evaluation/blessing.json", "runs/tiny/release"
    assert tracked == ["dvc.lock", "runs/.gitignore", blessing, f"{release}/log.jsonl", f"{release}/receipt.json"]


def test_a_second_flow_runs_nothing_within_seconds(finished: Project) -> None:
    start = time.monotonic()
    assert finished.flow() == []
    assert time.monotonic() - start < 30  # 5 s alone on two cores; issue says 15


def test_a_second_flow_of_the_recipe_is_refused(finished: Project) -> None:
    import fcntl

    with (finished.root / ".scratch/tiny/flow.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        out = finished.run("python", "-m", "flows.cli", "run", "tiny", ok=False)
    assert "a flow of the recipe `tiny` is already running" in out
    assert "Traceback" not in out


def test_metrics_and_plots_show(finished: Project) -> None:
    shown = json.loads(finished.run("dvc", "metrics", "show", "--json"))
    metrics = shown[""]["data"]["runs/tiny/evaluation/metrics.json"]["data"]
    assert metrics["model"] == finished.json("runs/tiny/evaluation/metrics.json")["model"]
    plots = json.loads(finished.run("dvc", "plots", "show", "--json"))
    assert "errors" not in plots
    assert {"runs/tiny/history/train.csv", "runs/tiny/history/validation.csv"} <= set(plots["data"])


def test_a_clone_pulls_and_trains_nothing(finished: Project, tmp_path: Path) -> None:
    storage, clone = tmp_path / "storage", tmp_path / "clone"
    finished.run("dvc", "remote", "add", "-d", "--local", "storage", str(storage))
    finished.run("dvc", "push", "-q")
    finished.run("git", "add", "-A")
    finished.run("git", "commit", "-qm", "a run")
    finished.run("git", "clone", "-q", ".", str(clone))
    shutil.copy(finished.root / ".dvc/config.local", clone / ".dvc/config.local")
    user = Project(clone, Path(finished.environment["PREFECT_HOME"]))
    user.run("dvc", "pull", "-q")
    assert user.repro() == []
    assert user.run("git", "diff", "--stat") == ""


def test_a_changed_learning_rate_reaches_training_and_what_follows_only(finished: Project) -> None:
    finished.edit("params/tiny.yaml", "learning_rate: 1e-2", "learning_rate: 2e-2")
    assert finished.flow() == ["train", "evaluate", "publish"]
    assert finished.repro() == []


def test_launch_makes_nothing_stale(finished: Project) -> None:
    finished.edit("params/tiny.yaml", "eval_batch_size: 32", "eval_batch_size: 16")
    assert finished.repro() == []


@pytest.mark.slow
def test_a_release_that_the_hub_lost_is_published_again(finished: Project) -> None:
    shutil.rmtree(finished.root / ".hub")
    assert finished.repro() == []  # DVC cannot know
    assert finished.flow() == ["evaluate", "publish"]  # the blessing was against what the Hub lost


@pytest.mark.slow
def test_after_a_forced_repro_the_flow_runs_nothing(finished: Project) -> None:
    assert finished.repro("--force") == ALL
    assert finished.flow() == []


@pytest.mark.slow
def test_without_publish_the_flow_stops_before_it(finished: Project) -> None:
    receipt = (finished.root / "runs/tiny/release/receipt.json").read_bytes()
    finished.edit("params/tiny.yaml", "split: test", "split: validation")
    assert finished.flow("--no-publish") == ["evaluate"]
    assert (finished.root / "runs/tiny/release/receipt.json").read_bytes() == receipt


@pytest.mark.parametrize(
    ("recipe", "words"),
    [("tyni", "did you mean `params/tiny.yaml`?"), ("other", "add the recipe to `recipes` at the top of dvc.yaml")],
)
def test_a_recipe_that_is_not_there_is_named(finished: Project, recipe: str, words: str) -> None:
    shutil.copy(finished.root / "params/tiny.yaml", finished.root / "params/other.yaml")
    out = finished.run("python", "-m", "flows.cli", "run", recipe, ok=False)
    assert words in out
    assert "Traceback" not in out


def test_clean_deletes_nothing_that_dvc_needs(finished: Project) -> None:
    finished.run("git", "commit", "-qa", "--amend", "-m", "another run")  # no branch has the first run now
    shown = finished.run("python", "-m", "flows.cli", "clean", "--releases", "1")
    assert ".dvc/cache: objects that no branch, no tag and no recent release uses" in shown
    assert "To delete these" in shown
    assert "Deleted" in finished.run("python", "-m", "flows.cli", "clean", "--releases", "1", "--yes")
    assert "There is nothing to delete." in finished.run("python", "-m", "flows.cli", "clean", "--releases", "1")
    stale = finished.run("dvc", "status")
    shutil.rmtree(finished.root / "runs/tiny/model")
    shutil.rmtree(finished.root / "runs/tiny/raw")
    finished.run("dvc", "checkout", "-q", "--force", "ingest@tiny", "train@tiny")
    assert finished.run("dvc", "status") == stale

"""DVC and the flow run the same stages: whichever came last, the other finds nothing to do.

What is published is never replaced by what is not shown to be better.

The tests share one project and stand in the order in which they change it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.history.run_log import read_runs
from tests.support.project import Project, ServedProject, stages_of, wait_for

pytestmark = pytest.mark.in_order


def query(project: Project, sql: str, *values: str) -> list[Any]:
    """Rows of the databases of the servers of runs, and of the one that a test has started."""
    home, rows = Path(project.environment["PREFECT_HOME"]), []
    for path in (home / "prefect.db", *sorted(home.glob("evergreen/runs-*.db"))):
        with sqlite3.connect(path) as database:
            rows += database.execute(sql, values).fetchall()
    return rows


def last_state(project: Project) -> tuple[str, str]:
    """Name and type of the state that the last flow ended in."""
    _, *state = max(query(project, "SELECT start_time, state_name, state_type FROM flow_run"))
    return tuple(state)


def flow_runs(project: Project) -> int:
    """How many runs of the flow Prefect knows."""
    return sum(number for (number,) in query(project, "SELECT count(*) FROM flow_run"))


def test_the_flow_says_what_there_is_now(finished: Project) -> None:
    receipt = finished.json("runs/tiny/release/receipt.json")
    assert receipt["status"] == "published"
    assert receipt["repo_id"] == "tests/tiny"
    assert last_state(finished) == ("Published", "COMPLETED")
    for words in (receipt["repo_id"], receipt["commit"], receipt["tag"], "perplexity", "runs/tiny/report.html"):
        assert words in finished.first_run
    assert (finished.root / "runs/tiny/report.html").exists()
    assert (finished.root / "runs/tiny/validated/report.html").exists()
    metrics = finished.json("runs/tiny/evaluation/metrics.json")
    assert metrics["model"]["perplexity"] < metrics["untrained"]["perplexity"] / 2


def test_a_run_that_publishes_is_logged_with_what_it_did(finished: Project) -> None:
    (entry,) = read_runs(Artifacts("tiny", finished.root))
    receipt = finished.json("runs/tiny/release/receipt.json")
    metrics = finished.json("runs/tiny/evaluation/metrics.json")
    details = finished.json("runs/tiny/evaluation/details.json")
    assert (entry.outcome, entry.verdict, entry.error) == ("published", "publish", None)
    assert (entry.commit, entry.tag, list(entry.reasons)) == (receipt["commit"], receipt["tag"], receipt["reasons"])
    assert {name: stage.outcome for name, stage in entry.stages.items()} == dict.fromkeys(STAGES, "ran")
    assert entry.seconds is not None
    assert sum(stage.seconds for stage in entry.stages.values()) <= entry.seconds + 1
    assert all(stage.last_start_s and stage.last_start_s < stage.seconds for stage in entry.stages.values())
    assert entry.rows == {**finished.json("runs/tiny/validated/validation.json")["rows_out"], "quarantined": 0}
    assert entry.evaluated is not None
    assert entry.evaluated.value == metrics["model"][metrics["metric"]]
    (gain,) = [
        one for one in details["comparisons"] if (one["against"], one["metric"]) == ("untrained", metrics["metric"])
    ]
    assert (entry.evaluated.gain, entry.evaluated.gain_low) == (gain["gain"], gain["low"])
    assert (entry.evaluated.against, entry.evaluated.champion, entry.cost) == ("untrained", None, None)
    assert receipt["tag"] in (finished.root / "runs/index.html").read_text(encoding="utf-8")
    assert not (finished.root / ".scratch/tiny/unfinished-run.json").exists()


def test_prefect_shows_the_last_runs(finished: Project) -> None:
    (entry,) = read_runs(Artifacts("tiny", finished.root))
    pages = "SELECT data FROM artifact WHERE key = 'history-tiny' AND data LIKE ?"
    shown = [json.loads(data) for (data,) in query(finished, pages, "%index.html%")]
    ids = [str(one) for (one,) in query(finished, "SELECT id FROM flow_run")]
    assert entry.run_id.replace("-", "") in {one.replace("-", "") for one in ids}
    assert any(f"| {entry.started:%Y\\-%m\\-%d %H:%M} | published |" in text for text in shown), shown


def test_a_run_with_nothing_to_do_is_a_success_without_an_entry(finished: Project) -> None:
    (before,) = read_runs(Artifacts("tiny", finished.root))
    succeeded = finished.root / ".scratch/tiny/succeeded"
    os.utime(succeeded, (0, 0))
    assert finished.flow() == []
    assert read_runs(Artifacts("tiny", finished.root)) == [before]
    assert succeeded.stat().st_mtime > before.started.timestamp()


def test_after_the_flow_dvc_runs_nothing(finished: Project) -> None:
    lock = (finished.root / "dvc.lock").read_bytes()
    assert finished.repro() == []
    assert (finished.root / "dvc.lock").read_bytes() == lock


def test_git_has_nothing_of_a_run_but_its_lock_recipe_blessing_metrics_receipt_and_logs(finished: Project) -> None:
    finished.run("git", "add", "-A")
    tracked = finished.run("git", "ls-files", "runs", "dvc.lock").split()
    small = [
        "evaluation/blessing.json",
        "evaluation/metrics.json",
        "recipe.yaml",
        "release/log.jsonl",
        "release/receipt.json",
        "runs.jsonl",
        "start.json",
    ]
    assert tracked == ["dvc.lock", "runs/.gitignore", *(f"runs/tiny/{name}" for name in small)]


def test_a_second_flow_runs_nothing_within_seconds_and_its_own_server_hears_nothing_of_it(finished: Project) -> None:
    before, start = flow_runs(finished), time.monotonic()
    out = finished.run("python", "-m", "flows.cli", "run", "tiny")
    assert stages_of(out) == []
    assert "nothing has changed since the last run, which ended with\npublished: tests/tiny" in out
    assert time.monotonic() - start < 30  # 4 s alone on two cores
    assert flow_runs(finished) == before > 0


@pytest.fixture(scope="module")
def served(finished: Project) -> Iterator[ServedProject]:
    """The project, with a server of the user's."""
    made = ServedProject(finished.root, Path(finished.environment["PREFECT_HOME"]))
    try:
        made.start_server()
        yield made
    finally:
        made.end()


def test_a_configured_server_gets_the_flow_run_of_a_run_with_nothing_to_do_without_prefect(
    served: ServedProject,
) -> None:
    """It is the one that Prefect's engine makes, but for ids and times."""
    served.run("python", "-c", "from flows.retrain import retrain; retrain('tiny')")
    code = "import sys; from flows.cli import main; main(['run', 'tiny']); print('prefect' in sys.modules)"
    out = served.run(sys.executable, "-c", code)  # not forked: it says what it has imported
    assert "nothing has changed since the last run" in out
    assert out.splitlines()[-1] == "False"
    found = served.post("flow_runs/filter")
    by_engine, ours = sorted(found, key=lambda run: run["created"])[-2:]
    assert (by_engine["state"]["name"], ours["state"]["name"]) == ("Nothing new", "Nothing new")
    assert _lasting(ours) == _lasting(by_engine)

    def events() -> list[str]:
        ids = [f"prefect.flow-run.{ours['id']}"]
        answer = served.post("events/filter", filter={"resource": {"id": ids}})
        return sorted(event["event"].removeprefix("prefect.flow-run.") for event in answer["events"])

    wait_for(lambda: events() == ["Nothing new", "Pending", "Running"], "the events of the run", 30)


def _lasting(run: dict[str, Any]) -> dict[str, Any]:
    """What two flow runs that do the same have in common; `deferred` is null or false, both for no."""
    own = {"id", "flow_run_id", "transition_id", "state_id", "created", "updated", "timestamp", "deferred"}
    own.add("idempotency_key")  # Prefect's engine names none
    return {
        key: _lasting(value) if isinstance(value, dict) else value
        for key, value in run.items()
        if key not in own and not key.endswith(("_time", "_time_delta"))
    }


def test_a_server_whose_password_only_a_profile_has_gets_the_run_from_prefect_itself(served: ServedProject) -> None:
    auth = served.environment.pop("PREFECT_API_AUTH_STRING")
    try:
        served.run("prefect", "config", "set", f"PREFECT_API_AUTH_STRING={auth}")
        before = {run["id"] for run in served.post("flow_runs/filter")}
        served.run("python", "-m", "flows.cli", "run", "tiny")
        added = [run for run in served.post("flow_runs/filter") if run["id"] not in before]
        assert [run["state"]["name"] for run in added] == ["Nothing new"]
    finally:
        served.run("prefect", "config", "unset", "PREFECT_API_AUTH_STRING", "-y", ok=None)
        served.end()


def test_a_second_flow_of_the_recipe_is_refused(finished: Project) -> None:
    import fcntl

    log = finished.root / "runs/tiny/runs.jsonl"
    before = log.read_bytes()
    with (finished.root / ".scratch/tiny/flow.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        out = finished.run("python", "-m", "flows.cli", "run", "tiny", ok=False)
    assert "a flow of the recipe `tiny` is already running" in out
    assert "Traceback" not in out
    assert log.read_bytes() == before, "the run that holds the lock is logged"


def test_metrics_and_plots_show(finished: Project) -> None:
    shown = json.loads(finished.run("dvc", "metrics", "show", "--json"))
    metrics = shown[""]["data"]["runs/tiny/evaluation/metrics.json"]["data"]
    assert metrics["model"] == finished.json("runs/tiny/evaluation/metrics.json")["model"]
    plots = json.loads(finished.run("dvc", "plots", "show", "--json"))
    assert "errors" not in plots
    assert {"runs/tiny/history/train.csv", "runs/tiny/history/validation.csv"} <= set(plots["data"])


@pytest.mark.slow  # tests/e2e/test_any_worker.py has a clone, too
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


def test_a_worse_model_of_a_changed_learning_rate_is_not_published_and_that_is_a_good_end(finished: Project) -> None:
    first = finished.json("runs/tiny/release/receipt.json")
    finished.edit("params/tiny.yaml", "learning_rate: 1e-2", "learning_rate: 2e-3")
    out = finished.run("python", "-m", "flows.cli", "run", "tiny")
    assert stages_of(out) == ["train", "evaluate", "publish"]
    assert re.findall(r"\S+: changed since its last run: .*", out) == [
        "train@tiny: changed since its last run: training"
    ]
    receipt = finished.json("runs/tiny/release/receipt.json")
    assert (receipt["status"], receipt["commit"], receipt["tag"]) == ("kept", first["commit"], first["tag"])
    (reason,) = receipt["reasons"]
    assert "worse than the champion's" in reason
    assert "kept the champion: tests/tiny" in out
    assert reason in out
    assert last_state(finished) == ("Kept the champion", "COMPLETED")
    assert out.count("Finished in state Kept the champion") == 1
    assert finished.repro() == []


def test_another_default_makes_stale_what_reads_it_and_nothing_else_and_launch_nothing(finished: Project) -> None:
    finished.edit("params/tiny.yaml", "eval_batch_size: 32", "eval_batch_size: 16")
    after = '\n    """Seconds after which publishing stops'
    finished.edit("params/schema.py", f"timeout_s: Seconds = 3600.0{after}", f"timeout_s: Seconds = 3601.0{after}")
    assert finished.repro() == ["publish"]
    assert "timeout_s: 3601.0" in (finished.root / "runs/tiny/recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("recipe", "words"),
    [("tyni", "did you mean `params/tiny.yaml`?"), ("other", "add the recipe to `recipes` there")],
)
def test_a_recipe_that_is_not_there_is_named(finished: Project, recipe: str, words: str) -> None:
    shutil.copy(finished.root / "params/tiny.yaml", finished.root / "params/other.yaml")
    out = finished.run("python", "-m", "flows.cli", "run", recipe, ok=False)
    assert words in out
    assert "Traceback" not in out


@pytest.mark.slow
def test_clean_deletes_nothing_that_dvc_needs(finished: Project) -> None:
    (finished.root / "unused.txt").write_text("in the cache, and of no commit")
    finished.run("dvc", "add", "-q", "unused.txt")
    for name in ("unused.txt", "unused.txt.dvc"):
        (finished.root / name).unlink()
    shown = finished.run("python", "-m", "flows.cli", "clean", "--releases", "1")
    assert f"{finished.root}/.dvc/cache: objects that nothing in git and no recent release uses" in shown
    assert "To delete" in shown
    assert "Deleted" in finished.run("python", "-m", "flows.cli", "clean", "--releases", "1", "--yes")
    assert "There is nothing to delete." in finished.run("python", "-m", "flows.cli", "clean", "--releases", "1")
    stale = finished.run("dvc", "status")
    shutil.rmtree(finished.root / "runs/tiny/model")
    shutil.rmtree(finished.root / "runs/tiny/raw")
    finished.run("dvc", "checkout", "-q", "--force", "ingest@tiny", "train@tiny")
    assert finished.run("dvc", "status") == stale


def test_a_refused_model_fails_the_run_and_nothing_else(finished: Project) -> None:
    finished.edit("params/tiny.yaml", "gate: {resamples: 200}", "gate: {resamples: 200, floors: {bits_per_byte: 0.01}}")
    out = finished.run("sh", "-c", f"python -m flows.cli run tiny; test $? -eq {os.EX_NOINPUT}")
    assert "GateRefusedError: publish@tiny: " in out
    assert "the gate refuses the model: bits_per_byte" in out
    assert "the recipe's floor" in out
    assert out.count("change the data, the training or evaluation.gate") == 1, "at the end"
    assert "evaluate: refuse: " not in out
    assert out.count("Task run 'ingest@tiny'") == 1, "an unchanged stage takes one line"
    assert last_state(finished) == ("Refused", "FAILED")
    assert finished.json("runs/tiny/evaluation/blessing.json")["verdict"] == "refuse"
    assert "up to date" in finished.run("dvc", "status", "evaluate@tiny"), "the work is not lost"

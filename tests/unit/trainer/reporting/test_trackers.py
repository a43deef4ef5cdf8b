"""Trackers: their content and location, also after a resume, without network access."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
from pathlib import Path

import pytest

from params import KilledError
from params.foundation.installation import install_extra
from params.schema import Launch, Training
from tests.support import tiny
from tests.support.training import metrics_log, run_train
from trainer.checkpoints.sealed import KILL_AT
from trainer.conflicts import find_training_conflicts
from trainer.loop import arguments
from trainer.reporting import trackers

VARIABLES = ("TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR", "WANDB_", "MLFLOW_")
STEPS = list(range(1, 13))
AFTER = STEPS[4:]
"""Steps after the kill. Trackio and MLflow write asynchronously and may lack the last steps before it."""


ALL = pytest.param(tuple(trackers.TRACKERS), marks=pytest.mark.slow, id="all")
"""To import and start all of them takes long."""
of_all = pytest.mark.parametrize("reported", [ALL], indirect=True)


@pytest.fixture(scope="module", params=[pytest.param(("tensorboard",), id="tensorboard"), ALL])
def reported(tmp_path_factory, request):
    """A run that was killed after its checkpoint of step 4 and resumed, with some trackers."""
    root = tmp_path_factory.mktemp("reported")
    changes = {"training.arguments": {"report_to": [*request.param], "run_name": "first-try", "project": "trials"}}
    artifacts, recipe = tiny.tokenized(root, tiny.recipe(changes))
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in [n for n in os.environ if n.startswith(VARIABLES)]:
            patch.delenv(name)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            patch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        patch.setenv("HOME", str(root / "home"))
        patch.setenv(KILL_AT, "checkpoint.renamed:2")
        with pytest.raises(KilledError):
            run_train(artifacts, recipe)
        (folder,) = (artifacts.scratch / "checkpoints").iterdir()
        shutil.copy(folder / "metrics.jsonl", root / "metrics-when-killed.jsonl")
        patch.delenv(KILL_AT)
        report = run_train(artifacts, recipe)
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            proxy.accept()  # no request
    return artifacts, report


def test_trackers_write_only_to_the_reports_folder(reported, request):
    artifacts, _ = reported
    is_quick = "tensorboard" in request.node.callspec.id
    assert not any((artifacts.scratch / "checkpoints").iterdir()), "the run's folder is removed"
    found = {p.name for p in (artifacts.scratch / "reports").iterdir()}
    assert found == ({"tensorboard"} if is_quick else {"tensorboard", "trackio", "wandb", "mlflow.db"})
    assert {p.name for p in artifacts.root.iterdir()} <= {
        "params",
        "runs",
        ".scratch",
        "home",
        "metrics-when-killed.jsonl",
    }


def test_metrics_have_each_line_once_after_a_resume(reported):
    artifacts, _ = reported
    lines = metrics_log(artifacts)
    assert [line["step"] for line in lines if "loss" in line] == STEPS
    assert [line["step"] for line in lines if "eval_loss" in line] == [0, 4, 8, 12]
    killed = (artifacts.root / "metrics-when-killed.jsonl").read_text().splitlines()
    assert len(killed) >= 4
    assert [json.loads(line) for line in killed] == lines[: len(killed)]


def test_tensorboard_has_each_step_once(reported):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    artifacts, report = reported
    folder = artifacts.scratch / "reports" / "tensorboard" / report.run
    assert len(list(folder.iterdir())) == 2, "one file per start"
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == STEPS
    assert [event.step for event in events.Scalars("eval/loss")] == [0, 4, 8, 12]


@of_all
def test_trackio_continues_the_run_of_that_name(reported):
    artifacts, _ = reported
    with sqlite3.connect(artifacts.scratch / "reports" / "trackio" / "trials.db") as database:
        rows = database.execute("SELECT run_name, metrics FROM metrics").fetchall()
    assert {name for name, _ in rows} == {"first-try"}
    steps = [json.loads(m)["train/global_step"] for _, m in rows if "train/loss" in json.loads(m)]
    assert set(AFTER) <= set(steps) <= set(STEPS)


@of_all
def test_wandb_has_one_folder_per_start_of_one_run(reported):
    artifacts, report = reported
    folders = [p.name for p in (artifacts.scratch / "reports" / "wandb").glob("offline-run-*")]
    assert len(folders) == 2
    assert {name.rpartition("-")[2] for name in folders} == {report.run}
    assert all(
        (artifacts.scratch / "reports" / "wandb" / f / f"run-{report.run}.wandb").stat().st_size for f in folders
    )


@of_all
def test_mlflow_continues_the_run(reported):
    import mlflow

    artifacts, report = reported
    client = mlflow.MlflowClient(f"sqlite:///{artifacts.scratch / 'reports' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("trials")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.tags["evergreen.run"]) == ("first-try", "FINISHED", report.run)
    assert set(AFTER) <= {m.step for m in client.get_metric_history(run.info.run_id, "loss")} <= set(STEPS)
    assert run.data.params["learning_rate"] == "0.01"


def test_missing_tracker_names_its_extra(monkeypatch):
    real = trackers.importlib.util.find_spec
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None if name == "wandb" else real(name))
    training = Training.model_validate(tiny.RECIPE["training"] | {"arguments": {"report_to": ["tensorboard", "wandb"]}})
    (found,) = find_training_conflicts(objective=None, model=None, training=training, launch=Launch(micro_batch_size=4))
    assert (found.what, found.fix) == ("wandb is not installed", install_extra("wandb"))


@pytest.mark.parametrize(
    ("report_to", "message"),
    [
        ("all", "`all` depends on what is installed; name the trackers: tensorboard, trackio, wandb, mlflow"),
        (["wandbb"], "transformers knows no tracker 'wandbb'; did you mean `wandb`?"),
        (3, "its type is"),
    ],
)
def test_unknown_tracker_is_refused(report_to, message):
    (found,) = arguments.find_argument_problems({"report_to": report_to})
    assert message in f"{found.what}; {found.fix}"


def test_environment_overrides_tracker_defaults(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers.os, "environ", environment := {"WANDB_MODE": "online"})
    trackers.set_tracker_environment(tmp_path / "checkpoints" / "key", ["wandb"], "p")
    assert environment["WANDB_MODE"] == "online"
    assert environment["WANDB_RUN_ID"] == "key"
    assert Path(environment["WANDB_DIR"]) == tmp_path / "reports"

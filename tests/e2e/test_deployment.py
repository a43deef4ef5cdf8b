"""The life of a deployment: server, deploy, worker, runs that are asked for and runs that are due.

The tests share one server, one worker and one project, and stand in the order in which they change it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.run.history import fetch_last_success_times
from params.foundation.artifacts import Artifacts
from tasks.history.run_log import read_runs
from tests.support.postgresql import start_if_installed
from tests.support.project import (
    STAGES,
    TINY_DEPLOYMENT,
    Project,
    ServedProject,
    copy_project,
    wait_for,
    write_sentences,
)
from tests.support.webhook import Webhook, webhook

# tests/e2e/test_tutorial.py deploys, and a worker runs what it was asked for; tests/e2e/test_watch.py has the messages.
pytestmark = [pytest.mark.in_order, pytest.mark.slow]

SLOW_STEPS = """
import pathlib, time
from transformers import TrainerCallback

class SlowSteps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if pathlib.Path("slow").exists():
            time.sleep(1)
"""
OFTEN = """
  - <<: *retrain
    name: often
    parameters: {recipe: tiny, publish: false}
    schedules:
      - {interval: 15, timezone: UTC, active: true}
"""
BURST = """
import threading
from flows.server import configured
made, server = threading.Barrier(50), configured.open_configured_server_client
configured.open_configured_server_client = lambda: (made.wait(), server())[1]  # to send fifty can take longer than the trigger waits
for _ in range(50):
    threading.Thread(target=configured.announce_new_data, args=("tiny", {})).start()
"""


class Deployed(ServedProject):
    """A project with a Prefect server and a worker, started as the README says, which sends messages to `received`."""

    received: Webhook

    def __init__(self, root: Path, home: Path) -> None:
        super().__init__(root, home)
        self.environment["PREFECT_WORKER_QUERY_SECONDS"] = "1"

    def start_worker(self) -> None:
        self.worker = self.start("prefect", "worker", "start", "--pool", "local", log="worker.log", fork=True)

    def ask(self, what: str, **body: object) -> list[dict]:
        return self.post(f"{what}/filter", **body)

    def runs(self, deployment: str = "tiny") -> list[dict]:
        """Flow runs of a deployment, the newest first."""
        found = self.ask("flow_runs", deployments={"name": {"any_": [deployment]}})
        return sorted(found, key=lambda run: run["created"], reverse=True)

    def notices(self) -> dict:
        """The events of `evergreen notice`, the newest first, and how many there are."""
        return self.post("events/filter", filter={"event": {"name": ["evergreen.data-arrived"]}})

    def logs(self, run: dict) -> str:
        chosen = {"flow_run_id": {"any_": [run["id"]]}}
        pages = [self.ask("logs", logs=chosen, sort="TIMESTAMP_ASC", offset=o, limit=200) for o in (0, 200, 400)]
        return "\n".join(line["message"] for page in pages for line in page)

    def task_runs(self, run: dict) -> dict[str, dict]:
        found = self.ask("task_runs", flow_runs={"id": {"any_": [run["id"]]}})
        return {task["name"].split("@")[0]: task for task in found}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, make_prefect_home: Callable[[], Path]) -> Iterator[Deployed]:
    root = tmp_path_factory.mktemp("deployed")
    copy_project(root)
    made = Deployed(root, make_prefect_home())
    with (root / "prefect.yaml").open("a", encoding="utf-8") as file:
        file.write(TINY_DEPLOYMENT)
    (root / "params/slow_steps.py").write_text(SLOW_STEPS, encoding="utf-8")
    made.edit("params/tiny.yaml", "training:\n", "training:\n  callbacks: ['params.slow_steps:SlowSteps']\n")
    made.edit("recipes.yaml", "trainer/losses.py}", "params/slow_steps.py}")
    opened = ExitStack()
    try:
        made.received = opened.enter_context(webhook())
        made.environment |= start_if_installed(opened)
        made.run("git", "init", "-q", "-b", "main")
        made.start_server()
        made.deploy("--all")
        made.run("python", "-m", "flows.cli", "watch", "--notify", made.received.url)
        made.start_worker()
        yield made
    finally:
        made.end()
        opened.close()


def test_a_paused_schedule_stays_paused_at_the_next_deploy(deployed: Deployed) -> None:
    def schedule() -> dict:
        (found,) = deployed.ask("deployments", deployments={"name": {"any_": ["default"]}})[0]["schedules"]
        return found

    first = schedule()
    assert first["active"]
    for command, is_active in (("pause", False), ("resume", True)):
        deployed.run("prefect", "deployment", "schedule", command, "retrain/default", first["id"])
        deployed.run("prefect", "--no-prompt", "deploy", "--name", "default")
        assert (schedule()["id"], schedule()["active"]) == (first["id"], is_active)


def test_the_default_recipe_is_scheduled(deployed: Deployed) -> None:
    found = {d["name"]: d for d in deployed.ask("deployments")}
    assert found["default"]["schedules"][0]["schedule"]["cron"] == "0 3 * * *"
    assert found["default"]["work_queue_name"] == "retrain"
    assert found["default"]["global_concurrency_limit"] is None


def test_a_run_that_is_asked_for_completes(deployed: Deployed) -> None:
    deployed.run("prefect", "deployment", "run", "retrain/tiny", "--watch")
    run = deployed.runs()[0]
    assert run["state"]["type"] == "COMPLETED"
    assert set(deployed.task_runs(run)) == set(STAGES)
    logs = deployed.logs(run)
    for line in ("training a tokenizer", "train: validation at step 20", "evaluate: untrained on"):
        assert line in logs
    artifacts = deployed.ask("artifacts", flow_runs={"id": {"any_": [run["id"]]}})
    assert {"history-tiny", *(f"{stage}-tiny" for stage in STAGES)} <= {a["key"] for a in artifacts}
    assert logged(deployed) == [run["id"]]
    assert deployed.repro() == []
    wait_for(lambda: deployed.received.messages, "the message", 60)
    (message,) = deployed.received.messages
    assert message["subject"] == "Evergreen: tiny was published"
    metrics, release = (
        deployed.json("runs/tiny/evaluation/metrics.json"),
        deployed.json("runs/tiny/release/receipt.json"),
    )
    name = metrics["metric"]
    values = f"{name}: model {metrics['model'][name]:.4g}, untrained {metrics['untrained'][name]:.4g}"
    page = deployed.root / "runs/tiny/report.html"
    for words in (
        *release["reasons"],
        f"{values} ({metrics['rows']} rows of test)",
        f"release: tests/tiny {release['tag']}",
        f"report: {page.as_uri()} on ",
        f"run: retrain-tiny {deployed.environment['PREFECT_API_URL'].removesuffix('/api')}/runs/flow-run/{run['id']}",
    ):
        assert words in message["text"]


def test_a_second_run_waits_for_the_first(deployed: Deployed) -> None:
    for _ in range(2):
        deployed.run("prefect", "deployment", "run", "retrain/tiny")
    wait_for(lambda: all(run["state"]["type"] == "COMPLETED" for run in deployed.runs()), "both runs to complete", 150)
    first, second = sorted(deployed.runs()[:2], key=lambda run: run["start_time"])
    assert first["end_time"] <= second["start_time"]
    assert len(logged(deployed)) == 1, "a run with nothing to do is not logged"
    assert {run["state"]["name"] for run in (first, second)} == {"Nothing new"}
    assert "ended with: Published" in first["state"]["message"]
    server = (PREFECT_API_URL, PREFECT_API_AUTH_STRING)
    with temporary_settings({setting: deployed.environment[setting.name] for setting in server}):
        (known,) = fetch_last_success_times(["tiny", "other"]).items()
    assert (known[0], known[1].isoformat()[:19]) == ("tiny", second["end_time"][:19])


def test_a_killed_stage_is_tried_again_and_goes_on(deployed: Deployed) -> None:
    deployed.edit("params/tiny.yaml", "max_steps: 20", "max_steps: 150")
    deployed.run("prefect", "deployment", "run", "retrain/tiny")
    wait_for(lambda: checkpoints(deployed), "a checkpoint", 90)
    (stage,) = deployed.processes("-m tasks train")
    stage.kill()
    wait_for(lambda: deployed.runs()[0]["state"]["type"] in {"COMPLETED", "FAILED"}, "the end of the run", 150)
    run = deployed.runs()[0]
    assert run["state"]["type"] == "COMPLETED", deployed.logs(run)
    assert {name: task["run_count"] for name, task in deployed.task_runs(run).items() if task["run_count"] > 1} == {
        "train": 2
    }
    assert "resumes at step" in deployed.logs(run)


def test_a_killed_worker_leaves_no_trainer_and_the_next_run_goes_on(deployed: Deployed) -> None:
    recipe = deployed.root / "params/tiny.yaml"
    text = recipe.read_text(encoding="utf-8").replace("seed: 3", "seed: 4")
    recipe.write_text(re.sub(r"max_steps: \d+", "max_steps: 150", text), encoding="utf-8")
    deployed.run("prefect", "deployment", "run", "retrain/tiny")
    wait_for(lambda: checkpoints(deployed), "a checkpoint", 180)
    deployed.worker.kill()
    wait_for(lambda: not deployed.processes("trainer.worker"), "the end of the trainer", 15)
    (lost,) = [run for run in deployed.runs() if run["state"]["type"] != "COMPLETED"]
    deployed.start_worker()
    wait_for(lambda: state(deployed, lost) != "RUNNING", "the lost run to be noticed", 60)
    deployed.run("prefect", "deployment", "run", "retrain/tiny", "--watch")
    assert "resumes at step" in deployed.logs(deployed.runs()[0])


def test_a_run_that_is_paused_or_suspended_while_it_trains_publishes_only_when_it_is_resumed(
    deployed: Deployed,
) -> None:
    recipe = deployed.root / "params/tiny.yaml"
    for seed, reschedule in ((5, False), (6, True)):
        recipe.write_text(re.sub(r"seed: \d+", f"seed: {seed}", recipe.read_text(encoding="utf-8"), count=1))
        slow = deployed.root / "slow"
        slow.touch()
        known = set(checkpoints(deployed))
        deployed.run("prefect", "deployment", "run", "retrain/tiny")
        wait_for(lambda known=known: set(checkpoints(deployed)) - known, "a checkpoint", 240)
        run = deployed.runs()[0]
        name = "Suspended" if reschedule else "Paused"
        wanted = {"type": "PAUSED", "name": name, "state_details": {"pause_reschedule": reschedule}}
        deployed.post(f"flow_runs/{run['id']}/set_state", state=wanted)
        slow.unlink()
        ended = (lambda: not deployed.processes("flows", "retrain")) if reschedule else None
        waits = lambda run=run: "the run is paused: it waits" in deployed.logs(run)  # noqa: E731
        wait_for(ended or waits, "the end of the stage", 240)
        time.sleep(5)
        assert state(deployed, run) == "PAUSED"
        assert "evaluate" not in deployed.task_runs(run)
        deployed.post(f"flow_runs/{run['id']}/resume")
        wait_for(lambda run=run: state(deployed, run) in {"COMPLETED", "FAILED"}, "the end of the run", 240)
        assert state(deployed, run) == "COMPLETED", deployed.logs(run)
        assert deployed.task_runs(run)["publish"]["state"]["type"] == "COMPLETED"


@pytest.mark.parametrize("away_s", [10, pytest.param(600, marks=pytest.mark.timeout(2400))])
def test_a_run_survives_an_absent_server(deployed: Deployed, away_s: int) -> None:
    recipe = deployed.root / "params/tiny.yaml"
    text = re.sub(r"max_steps: \d+", f"max_steps: {150 + away_s}", recipe.read_text(encoding="utf-8"))
    recipe.write_text(text, encoding="utf-8")
    slow = deployed.root / "slow"
    slow.touch()
    deployed.run("prefect", "deployment", "run", "retrain/tiny")
    wait_for(lambda: deployed.processes("trainer.worker"), "the training", 180)
    run = deployed.runs()[0]
    deployed.stop_server()
    known = checkpoints(deployed)
    time.sleep(away_s)
    wait_for(lambda: set(checkpoints(deployed)) - set(known), "a checkpoint without a server", 60)
    assert deployed.processes("trainer.worker")
    slow.unlink()
    deployed.start_server()
    limit_s = 120 + 2 * away_s  # after a failed request, the next waits up to as long as the server was away
    wait_for(lambda: state(deployed, run) not in {"RUNNING", "CRASHED"}, "the run to be reported", limit_s)
    history = deployed.api.get("flow_run_states/", params={"flow_run_id": run["id"]}).json()
    assert [entry["type"] for entry in history][-2:] == ["RUNNING", "COMPLETED"], history
    assert deployed.worker.poll() is None
    deployed.worker.terminate()  # the wait before its next request may be as long as the server was away
    deployed.worker.wait(60)
    deployed.start_worker()


def test_bad_rows_fail_the_run_at_validate_without_retries(deployed: Deployed) -> None:
    receipt = deployed.json("runs/tiny/release/receipt.json")
    write_sentences(deployed.root / "data/sentences.csv", empty=range(40, 80))
    deployed.run("prefect", "deployment", "run", "retrain/tiny", "--watch", ok=False)
    run = deployed.runs()[0]
    assert run["state"]["type"] == "FAILED"
    assert "DataError" in run["state"]["message"]
    for words in ("40 of 300 rows", "column='text'", "report.html"):
        assert words in run["state"]["message"]
    named = [int(row) for row in re.findall(r"row (\d+) of \w+: ''", run["state"]["message"])]
    assert named
    assert set(named) <= set(range(40, 80))
    tasks = deployed.task_runs(run)
    assert {name: task["state"]["type"] for name, task in tasks.items()} == {
        "ingest": "COMPLETED",
        "validate": "FAILED",
    }
    assert tasks["validate"]["run_count"] == 1
    assert "Traceback" not in deployed.logs(run)
    assert deployed.json("runs/tiny/release/receipt.json") == receipt
    wait_for(lambda: deployed.received.about("tiny failed", "40 of 300 rows", run["id"]), "the message", 60)
    assert len(deployed.received.about("tiny failed")) == 1
    crashed = [run["id"] for run in deployed.runs() if run["state"]["type"] == "CRASHED"]
    assert len(crashed) == 1, "one worker was killed; a stage that is killed crashes no run"
    assert len(deployed.received.about("crashed")) == len(deployed.received.about("crashed", *crashed)) == 1


def test_a_burst_of_notices_starts_one_run(deployed: Deployed) -> None:
    """Ten seconds instead of the minute in prefect.yaml; the deployment is otherwise as it is there."""
    write_sentences(deployed.root / "data/sentences.csv")
    text = (deployed.root / "prefect.yaml").read_text(encoding="utf-8")
    on_notice = text[text.index("    name: default-on-notice") : text.index("    name: default-often")]
    mine = on_notice.replace("default", "tiny").replace("60", "10")
    (deployed.root / "prefect.yaml").write_text(text.replace(on_notice, mine), encoding="utf-8")
    deployed.run("prefect", "--no-prompt", "deploy", "--name", "tiny-on-notice")
    notice = ("python", "-m", "flows.cli", "notice")
    assert "no such recipe" in deployed.run(*notice, "tyni", ok=False)
    deployed.run(*notice, "default")  # another recipe's
    deployed.run("python", "-c", BURST)
    wait_for(lambda: deployed.notices()["total"] == 51, "all notices to arrive", 60)
    wait_for(lambda: deployed.runs("tiny-on-notice"), "the run", 60)
    (run,) = deployed.runs("tiny-on-notice")
    last_notice = max(moment(event["occurred"]) for event in deployed.notices()["events"])
    assert moment(run["expected_start_time"]) > last_notice, "it sees the data of all notices"
    wait_for(lambda: deployed.runs("tiny-on-notice")[0]["state"]["type"] == "COMPLETED", "the run to complete", 150)
    assert len(deployed.runs("tiny-on-notice")) == 1
    deployed.run(*notice, "tiny", "--data", "rows=300", "--data", "by=a test")
    wait_for(lambda: len(deployed.runs("tiny-on-notice")) == 2, "the run of a later notice", 60)
    sent = {"rows": "300", "by": "a test"}
    wait_for(
        lambda: sent in [event["payload"] for event in deployed.notices()["events"]], "the notice to be stored", 30
    )
    (other,) = deployed.runs("default-on-notice")
    delete = partial(deployed.api.delete, f"flow_runs/{other['id']}")
    wait_for(lambda: delete().status_code == 204, "the other run to be deleted: SQLite may be busy", 30)


def test_a_run_that_is_due_appears_and_runs_by_itself(deployed: Deployed) -> None:
    write_sentences(deployed.root / "data/sentences.csv")
    with (deployed.root / "prefect.yaml").open("a", encoding="utf-8") as file:
        file.write(OFTEN)
    deployed.run("prefect", "--no-prompt", "deploy", "--name", "often")
    start = time.monotonic()

    def done() -> list[dict]:
        return [r for r in deployed.runs("often") if r["state"]["type"] == "COMPLETED"]

    wait_for(done, "a scheduled run to complete", 150)
    assert done()[0]["auto_scheduled"]
    assert time.monotonic() - start < 150


def logged(project: Project) -> list[str]:
    """The flow runs in the log of runs."""
    return [run.run_id for run in read_runs(Artifacts("tiny", project.root))]


def checkpoints(project: Project) -> list[Path]:
    return list((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def state(project: Deployed, run: dict) -> str:
    return project.api.get(f"flow_runs/{run['id']}").json()["state"]["type"]

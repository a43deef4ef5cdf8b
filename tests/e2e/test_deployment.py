"""The life of a deployment: server, deploy, worker, runs that are asked for and runs that are due.

The tests share one server, one worker and one project, and stand in the order in which they change it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.project import STAGES, Project, copy_project, free_port, wait_for, write_sentences

TINY = """
  - <<: *retrain
    name: tiny
    parameters: {recipe: tiny}
"""
EVERY_MINUTE = """
  - <<: *retrain
    name: every-minute
    parameters: {recipe: tiny, publish: false}
    schedules:
      - {cron: "* * * * *", timezone: UTC, active: true}
"""


class Deployed(Project):
    """A project with a Prefect server and a worker, started as the README says."""

    def __init__(self, root: Path, home: Path) -> None:
        super().__init__(root, home)
        port = free_port()
        self.api = httpx.Client(base_url=f"http://127.0.0.1:{port}/api", timeout=30)
        self.environment |= {
            "PREFECT_API_URL": str(self.api.base_url).rstrip("/"),
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }

    def healthy(self) -> bool:
        try:
            return self.api.get("health").status_code == 200
        except httpx.TransportError:
            return False

    def start_worker(self) -> None:
        self.worker = self.start("prefect", "worker", "start", "--pool", "local", log="worker.log")

    def ask(self, what: str, **body: object) -> list[dict]:
        answer = self.api.post(f"{what}/filter", json=body)
        answer.raise_for_status()
        return answer.json()

    def runs(self, deployment: str = "tiny") -> list[dict]:
        """Flow runs of a deployment, the newest first."""
        found = self.ask("flow_runs", deployments={"name": {"any_": [deployment]}})
        return sorted(found, key=lambda run: run["created"], reverse=True)

    def logs(self, run: dict) -> str:
        chosen = {"flow_run_id": {"any_": [run["id"]]}}
        pages = [self.ask("logs", logs=chosen, sort="TIMESTAMP_ASC", offset=o, limit=200) for o in (0, 200, 400)]
        return "\n".join(line["message"] for page in pages for line in page)

    def task_runs(self, run: dict) -> dict[str, dict]:
        found = self.ask("task_runs", flow_runs={"id": {"any_": [run["id"]]}})
        return {task["name"].split("@")[0]: task for task in found}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    root = tmp_path_factory.mktemp("deployed")
    copy_project(root)
    made = Deployed(root, tmp_path_factory.mktemp("prefect-server"))
    with (root / "prefect.yaml").open("a", encoding="utf-8") as file:
        file.write(TINY)
    try:
        made.run("git", "init", "-q", "-b", "main")
        made.start("prefect", "server", "start", log="server.log")
        wait_for(made.healthy, "the server", 90)
        made.run("prefect", "work-pool", "create", "local", "--type", "process")
        made.run("prefect", "--no-prompt", "deploy", "--all")
        made.start_worker()
        yield made
    finally:
        made.end()
        made.api.close()


def test_the_default_recipe_is_scheduled_and_never_overlaps(deployed: Deployed) -> None:
    found = {d["name"]: d for d in deployed.ask("deployments")}
    assert found["default"]["schedules"][0]["schedule"]["cron"] == "0 3 * * *"
    assert found["default"]["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert found["default"]["global_concurrency_limit"]["limit"] == 1


def test_a_run_that_is_asked_for_completes(deployed: Deployed) -> None:
    deployed.run("prefect", "deployment", "run", "retrain/tiny", "--watch")
    run = deployed.runs()[0]
    assert run["state"]["type"] == "COMPLETED"
    assert set(deployed.task_runs(run)) == set(STAGES)
    logs = deployed.logs(run)
    for line in ("training a tokenizer", "train: step 20 of 20", "evaluate: untrained on test"):
        assert line in logs
    artifacts = deployed.ask("artifacts", flow_runs={"id": {"any_": [run["id"]]}})
    assert {f"{stage}-tiny" for stage in STAGES} <= {a["key"] for a in artifacts}
    assert deployed.repro() == []


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
    deployed.edit("params/tiny.yaml", "seed: 3", "seed: 4")
    deployed.run("prefect", "deployment", "run", "retrain/tiny")
    wait_for(lambda: checkpoints(deployed), "a checkpoint", 180)
    deployed.worker.kill()
    wait_for(lambda: not deployed.processes("trainer.worker"), "the end of the trainer", 15)
    (lost,) = [run for run in deployed.runs() if run["state"]["type"] != "COMPLETED"]
    deployed.start_worker()
    wait_for(lambda: state(deployed, lost) != "RUNNING", "the lost run to be noticed", 60)
    deployed.run("prefect", "deployment", "run", "retrain/tiny", "--watch")
    assert "resumes at step" in deployed.logs(deployed.runs()[0])


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


def test_a_run_that_is_due_appears_and_runs_by_itself(deployed: Deployed) -> None:
    write_sentences(deployed.root / "data/sentences.csv")
    with (deployed.root / "prefect.yaml").open("a", encoding="utf-8") as file:
        file.write(EVERY_MINUTE)
    deployed.run("prefect", "--no-prompt", "deploy", "--name", "every-minute")
    start = time.monotonic()

    def done() -> list[dict]:
        return [r for r in deployed.runs("every-minute") if r["state"]["type"] == "COMPLETED"]

    wait_for(done, "a scheduled run to complete", 150)
    assert done()[0]["auto_scheduled"]
    assert time.monotonic() - start < 150


def checkpoints(project: Project) -> list[Path]:
    return list((project.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))


def state(project: Deployed, run: dict) -> str:
    return project.api.get(f"flow_runs/{run['id']}").json()["state"]["type"]

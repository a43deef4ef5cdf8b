"""The server of docs/operation.md: PostgreSQL, the units' commands and environments, backup, restore, and vacuum.

The tests share one server, one worker and one project, and stand in the order in which they change it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.postgresql import Database, postgresql
from tests.support.project import STAGES, TINY_DEPLOYMENT, ServedProject, copy_project, wait_for
from tests.support.systemd import Unit
from tests.support.webhook import Webhook, webhook

pytestmark = pytest.mark.slow

SLOW_STEPS = """
import pathlib, time
from transformers import TrainerCallback

class SlowSteps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if pathlib.Path("slow").exists():
            time.sleep(0.5)
"""
STATES = ("state_type", "state_name", "start_time", "end_time", "parameters")


class Operated(ServedProject):
    """A project in its folder, and its two services with nothing in their environment but what the page gives them."""

    received: Webhook

    def __init__(self, root: Path, state: Path, database: Database) -> None:
        super().__init__(root, state / "evergreen" / "prefect")
        self.state = state
        self.database = database
        (root / ".venv").symlink_to(sys.prefix)
        self.server_unit = Unit("prefect-server.service", project=root, state=state)
        self.worker_unit = Unit("evergreen-worker@.service", project=root, state=state)
        port = self.environment["PREFECT_SERVER_API_PORT"]
        self.server_env = {"PREFECT_SERVER_API_PORT": port, **self.connection("prefect")}
        self.worker_env = {
            "PREFECT_API_URL": self.environment["PREFECT_API_URL"],
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "OMP_NUM_THREADS": "1",
        }
        for unit in (self.server_unit, self.worker_unit):
            Path(unit.environment["HOME"]).mkdir(parents=True, exist_ok=True)

    def connection(self, name: str) -> dict[str, str]:
        return {"PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database.url(name)}

    def start_service(self, unit: Unit, files: dict[str, str], log: str) -> subprocess.Popen[bytes]:
        """Start what a unit starts; `files` is the content of its EnvironmentFile."""
        before, self.environment = self.environment, unit.environment | files
        try:
            return self.start(*unit.command, log=log)
        finally:
            self.environment = before

    def start_server(self) -> None:
        self.server = self.start_service(self.server_unit, self.server_env, "server.log")
        wait_for(self._answers, "the server", 120)

    def stop_server(self) -> None:
        assert self.server_unit.stop(self.server) == []

    def start_worker(self) -> None:
        self.worker = self.start_service(self.worker_unit, self.worker_env, "worker.log")

    def runs(self) -> dict[str, dict]:
        """The flow runs of the deployment `tiny` by id, the newest first."""
        found = self.post("flow_runs/filter", deployments={"name": {"any_": ["tiny"]}}, sort="START_TIME_DESC")
        return {run["id"]: run for run in found}

    def ask(self) -> str:
        """Ask for a run, and return its id."""
        known = self.runs()
        self.run("prefect", "deployment", "run", "retrain/tiny")
        (new,) = self.runs().keys() - known.keys()
        return new

    def wait_for_end(self, run: str) -> dict:
        wait_for(
            lambda: self.runs()[run]["state_type"] in {"COMPLETED", "FAILED", "CRASHED"}, "the end of the run", 240
        )
        return self.runs()[run]

    def checkpoints(self) -> set[Path]:
        return set((self.root / ".scratch/tiny/checkpoints").glob("*/checkpoint-*"))


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    root = tmp_path_factory.mktemp("operated")
    copy_project(root)
    with (root / "prefect.yaml").open("a", encoding="utf-8") as file:
        file.write(TINY_DEPLOYMENT)
    (root / "params/slow_steps.py").write_text(SLOW_STEPS, encoding="utf-8")
    with postgresql() as database, webhook() as received:
        made = Operated(root, tmp_path_factory.mktemp("state"), database)
        made.received = received
        made.edit("params/tiny.yaml", "training:\n", "training:\n  callbacks: ['params.slow_steps:SlowSteps']\n")
        made.edit("recipes.yaml", "trainer/losses.py}", "params/slow_steps.py}")
        try:
            made.run("git", "init", "-q", "-b", "main")
            made.environment |= made.connection("prefect")
            made.make_password()
            made.run("prefect", "--no-prompt", "server", "database", "upgrade", "-y")
            made.start_server()
            made.deploy("--all")
            made.run("python", "-m", "flows.cli", "watch", "--notify", received.url)
            made.start_worker()
            yield made
        finally:
            made.end()


def test_a_run_ends_on_postgresql(operated: Operated) -> None:
    (revision,) = operated.database.query("SELECT version_num FROM alembic_version", "prefect")
    assert revision
    run = operated.wait_for_end(operated.ask())
    assert run["state_type"] == "COMPLETED", run
    assert operated.json("runs/tiny/release/receipt.json")["tag"].startswith("release-")
    tasks = operated.post("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
    assert {task["name"].split("@")[0] for task in tasks} == set(STAGES)
    assert not list(operated.state.rglob("prefect.db")), "nothing is in SQLite"


def test_a_run_survives_restarts_of_server_and_database(operated: Operated) -> None:
    run = train_slowly(operated, "2e-2")
    for restart in (restart_server, restart_database):
        known = operated.checkpoints()
        restart(operated)
        time.sleep(10)  # Prefect's triggers never start if the database is away while they do
        wait_for(lambda known=known: operated.checkpoints() - known, "a checkpoint after the restart", 60)
    (operated.root / "slow").unlink()
    assert operated.wait_for_end(run)["state_type"] == "COMPLETED"
    history = operated.api.get("flow_run_states/", params={"flow_run_id": run}).json()
    assert "CRASHED" not in {state["type"] for state in history}
    assert operated.worker.poll() is None


def test_a_worker_that_is_stopped_leaves_a_checkpoint_for_the_next_run(operated: Operated) -> None:
    run = train_slowly(operated, "3e-2")
    assert operated.worker_unit.stop(operated.worker) == []
    assert not operated.processes("trainer.worker")
    (operated.root / "slow").unlink()
    assert operated.runs()[run]["state_type"] == "CRASHED", "it would keep its place in the queue"
    wait_for(lambda: operated.received.about("tiny crashed", run), "the message", 30)
    operated.start_worker()
    following = operated.wait_for_end(operated.ask())
    assert following["state_type"] == "COMPLETED"
    logs = operated.post("logs/filter", logs={"flow_run_id": {"any_": [following["id"]]}}, limit=200)
    assert any("resumes at step" in line["message"] for line in logs)


def test_a_backup_restores_what_the_server_knew(operated: Operated) -> None:
    backup = operated.database.file("prefect.dump")
    operated.database.run("pg_dump", "--format=custom", f"--file={backup}", "prefect")
    before = known(operated)
    later = operated.wait_for_end(operated.ask())["id"]
    operated.worker_unit.stop(operated.worker)
    operated.stop_server()

    operated.database.run("createdb", "--owner=prefect", "restored")
    operated.database.run("pg_restore", "--exit-on-error", "--dbname=restored", str(backup))
    operated.server_env |= operated.connection("restored")
    operated.start_server()
    assert known(operated) == before
    assert later not in operated.runs()
    operated.start_worker()
    assert operated.wait_for_end(operated.ask())["state_type"] == "COMPLETED"


def test_vacuum_deletes_old_runs_and_their_logs(operated: Operated) -> None:
    old, *kept = [run["id"] for run in operated.runs().values() if run["end_time"]]
    age = "UPDATE flow_run SET end_time = end_time - interval '{} days' WHERE id = '{}'"
    operated.database.query(age.format(91, old), "restored")
    operated.database.query(age.format(89, kept[0]), "restored")
    count = f"SELECT count(*) FROM log WHERE flow_run_id = '{old}'"
    assert operated.database.query(count, "restored") != ["0"]
    operated.stop_server()
    loops = ("LOOP_SECONDS", "ORPHAN_CLEANUP_LOOP_SECONDS")
    operated.server_env |= {f"PREFECT_SERVER_SERVICES_DB_VACUUM_{name}": "2" for name in loops}
    operated.start_server()
    wait_for(lambda: old not in operated.runs(), "the vacuum of runs", 60)
    wait_for(lambda: operated.database.query(count, "restored") == ["0"], "the vacuum of logs", 60)
    assert set(kept) <= set(operated.runs())


def train_slowly(operated: Operated, rate: str) -> str:
    """Ask for a run that trains until the file `slow` is deleted, wait for its first checkpoint, and return its id."""
    recipe = operated.root / "params/tiny.yaml"
    text = re.sub(r"learning_rate: .*", f"learning_rate: {rate}", recipe.read_text(encoding="utf-8"))
    recipe.write_text(re.sub(r"max_steps: .*", "max_steps: 200", text), encoding="utf-8")
    (operated.root / "slow").touch()
    known = operated.checkpoints()
    run = operated.ask()
    wait_for(lambda: operated.checkpoints() - known, "a checkpoint", 180)
    return run


def restart_server(operated: Operated) -> None:
    operated.stop_server()
    operated.start_server()


def restart_database(operated: Operated) -> None:
    operated.database.stop()
    operated.database.start()


def known(operated: Operated) -> dict[str, object]:
    """What a server must not lose: runs with their states, deployments, queues, automations."""
    runs = {key: [run[name] for name in STATES] for key, run in operated.runs().items()}
    names: Callable[[str], set[str]] = lambda what: {one["name"] for one in operated.post(f"{what}/filter")}  # noqa: E731
    return {"runs": runs} | {what: names(what) for what in ("deployments", "work_queues", "automations", "work_pools")}

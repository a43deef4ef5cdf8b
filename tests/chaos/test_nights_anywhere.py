"""Nights of the deployment `default-anywhere`: each run has a clone that is deleted after it, and something goes wrong.

`make slow` lives through one night of each kind, `make chaos` through thirty. EVERGREEN_CHAOS_NIGHTS sets their number,
EVERGREEN_CHAOS_SEED what happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.campaign import SEED
from tests.support.faulty_hub import STRANGER, Fault, FaultyHub
from tests.support.project import Project, ServedProject, wait_for, write_sentences
from tests.support.sharing import TOKEN, Shared, sharing, write_deployment

TROUBLES = (
    "none",
    "git refuses",
    "flow killed",
    "machine lost",
    "bad rows",
    "DVC remote away",
    "Hub away",
    "disk lost",
)
"""`disk lost`: git refuses, and what the worker has kept is gone before the next night."""
NIGHTS = max(len(TROUBLES), int(os.environ.get("EVERGREEN_CHAOS_NIGHTS", "0")))
ENDS = {
    "Published": "published",
    "Kept the champion": "kept",
    "Refused": "refused",
    "Failed": "failed",
    "Crashed": "crashed",
    "Cancelled": "cancelled",
}
"""What the log must call a run by the name of its last state. One with nothing to do is in no log."""


class Nights:
    """A Prefect server, a worker, and their remotes; what has happened so far."""

    def __init__(self, shared: Shared, hub: FaultyHub, office: ServedProject, worker: Project) -> None:
        self.shared, self.hub, self.office, self.worker = shared, hub, office, worker
        self.chance = random.Random(SEED)
        self.rows = 300
        self.states: dict[str, tuple[str, str]] = {}
        """Name and message of the last state of each night, by the id of its run."""

    def start(self) -> None:
        self.office.start_server()
        self.office.deploy("--name", "tiny-anywhere")
        self.deployment = self.office.post("deployments/filter")[0]["id"]
        self.start_worker()

    def start_worker(self) -> None:
        self.process = self.worker.start("prefect", "worker", "start", "--pool", "local", log="worker.log")

    def night(self, trouble: str) -> str:
        """A run of the deployment; return the name of its last state."""
        self.rows += 20
        self.push_rows(range(0, self.rows, 2) if trouble == "bad rows" else ())
        path = f"deployments/{self.deployment}/create_flow_run"
        run = self.office.post(path, state={"type": "SCHEDULED"})["id"]
        with self.in_trouble(trouble):
            if trouble in {"flow killed", "machine lost"}:
                wait_for(lambda: self.state(run)["type"] == "RUNNING", "the run", 120, every_s=0.5)
                time.sleep(self.chance.uniform(1, 15))
                self.kill(run, with_worker=trouble == "machine lost")
            wait_for(lambda: self.has_ended(run), f"the end of the night: {trouble}", 400, every_s=1)
        wait_for(lambda: not self.processes(run), "the end of all that the run has started", 60)
        state = self.state(run)
        self.states[run] = state["name"], state["message"] or ""
        self.look_at_reports(state["message"] or "")
        if trouble in {"machine lost", "disk lost"}:
            shutil.rmtree(self.shared.folder / "cache")
        return state["name"]

    def look_at_reports(self, message: str) -> None:
        """What a message names can be opened, although the clone is gone."""
        for path in re.findall(r"report: file://(\S+) on", message):
            assert Path(path).read_text().startswith("<!doctype html>")
        for command in re.findall(r"report without rows of the data: (.+)", message):
            self.office.run("sh", "-c", command)
            assert (self.office.root / "report.html").read_text().startswith("<!doctype html>")

    def push_rows(self, empty: Any) -> None:
        author = self.shared.workers[0]
        author.run("git", "pull", "-q", "origin", "main")
        write_sentences(author.root / "data/sentences.csv", self.rows, empty=empty)
        author.run("git", "commit", "-q", "-am", "new rows")
        author.run("git", "push", "-q", "origin", "main")

    def state(self, run: str) -> dict[str, Any]:
        return self.office.api.get(f"flow_runs/{run}").raise_for_status().json()["state"]

    def has_ended(self, run: str) -> bool:
        return self.state(run)["type"] in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

    def processes(self, run: str) -> list[psutil.Process]:
        """The living processes of a run, whatever it has started included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("PREFECT__FLOW_RUN_ID", "").replace("-", "") == run.replace("-", ""):
                    found.append(process)
        return [one for one in found if one.status() != psutil.STATUS_ZOMBIE]

    def kill(self, run: str, *, with_worker: bool) -> None:
        """Kill the flow, or all that is on its machine; then the server marks the run as lost, as `evergreen watch` has it do."""
        running = self.processes(run)
        if with_worker:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for process in running if with_worker else running[:1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if with_worker:
            lost = {"type": "CRASHED", "message": "no heartbeat for 900 s: its process or its machine is gone"}
            self.office.post(f"flow_runs/{run}/set_state", state=lost)
            self.start_worker()

    @contextlib.contextmanager
    def in_trouble(self, trouble: str) -> Iterator[None]:
        """While it lasts, something of what the workers share does not work."""
        storage, hook = self.shared.folder / "storage", self.shared.git / "hooks/pre-receive"
        away = storage.with_name("away")
        if trouble in {"git refuses", "disk lost"}:
            hook.write_text("#!/bin/sh\nexit 1\n")
            hook.chmod(0o755)
        elif trouble == "DVC remote away" and storage.exists():
            storage.rename(away)
            storage.touch()  # else DVC would make an empty one
        elif trouble == "Hub away":
            self.hub.faults.append(Fault(".", "before", times=10**9))
        try:
            yield
        finally:
            hook.unlink(missing_ok=True)
            self.hub.faults.clear()
            if away.exists():
                storage.unlink()
                away.rename(storage)

    def logged(self, name: str) -> list[dict[str, Any]]:
        """A log on main of the git remote."""
        bare = Project(self.shared.git, self.shared.prefect_home)
        status, text = bare.run_and_report("git", "show", f"main:runs/tiny/{name}")
        return [] if status else [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def nights(tmp_path: Path, make_prefect_home: Callable[[], Path]) -> Iterator[Nights]:
    def prepare(author: Project) -> None:
        author.edit("params/tiny.yaml", "endpoint: local", "timeout_s: 3")
        author.edit("params/tiny.yaml", "resamples: 200", "resamples: 200, margin: 100")
        author.edit("flows/retrain.py", "retries=3", "retries=1")  # a night in a minute
        author.edit("flows/retrain.py", "retry_delay_seconds=[5, 30, 120]", "retry_delay_seconds=1")
        author.edit("flows/record/recording.py", "_WAITS_S = (2.0, 10.0, 30.0)", "_WAITS_S = (0.5, 0.5, 0.5)")

    hub = FaultyHub(tmp_path / "hub", tokens={TOKEN: "tests"})
    office = ServedProject(tmp_path / "office", make_prefect_home())
    with sharing(tmp_path, Path(office.environment["PREFECT_HOME"]), hub, prepare) as shared:
        shared.api.headers = STRANGER
        office.environment |= {name: shared.workers[0].environment[name] for name in ("HF_ENDPOINT", "HF_TOKEN")}
        worker = Project(tmp_path / "empty", Path(office.environment["PREFECT_HOME"]))
        worker.environment = office.environment | {
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "CACHE": str(tmp_path / "cache"),
        }
        shared.workers += [worker, office]
        for one in (office, worker):
            one.root.mkdir()
        office.run("git", "clone", "-q", str(shared.git), ".")
        write_deployment(office.root / "prefect.yaml", shared)
        made = Nights(shared, hub, office, worker)
        made.start()
        yield made


@pytest.mark.slow  # tests/unit/flows/test_record.py and test_run_record.py show it line by line
@pytest.mark.timeout(240 + 90 * NIGHTS)
def test_every_night_is_in_the_history_once_with_its_end(nights: Nights, summary_lines: list[str]) -> None:
    started = time.monotonic()
    troubles = list(TROUBLES)
    while len(troubles) < NIGHTS:
        troubles += nights.chance.sample(TROUBLES, len(TROUBLES))
    ends = [f"{trouble}: {nights.night(trouble)}" for trouble in troubles[:NIGHTS]]
    ends.append(f"quiet: {nights.night('none')}")

    logged = nights.logged("runs.jsonl")
    found = {entry["run_id"]: entry["outcome"] for entry in logged}
    assert len(found) == len(logged), "a run is in the log once"
    expected = {}
    for run, (name, message) in nights.states.items():
        end = message.partition(", but not recorded")[0] if name == "Not recorded" else name
        if end != "Nothing new":
            expected[run] = ENDS[end]
    assert found == expected, "\n".join([*ends, *(f"{run}: {state}" for run, state in nights.states.items())])
    assert [path.name for path in nights.worker.root.iterdir()] == ["worker.log"], "clones are deleted"
    published = {entry["tag"] for entry in nights.logged("release/log.jsonl") if entry["event"] == "published"}
    assert published == {tag.name for tag in nights.shared.api.list_repo_refs("tests/tiny").tags}
    # A stage that would be tried again makes no report.
    none = {run for run, (name, message) in nights.states.items() if name == "Crashed" or "TransientError" in message}
    silent = {run for run in expected if "report: file://" not in nights.states[run][1]}
    assert silent <= none, "\n\n".join(nights.states[run][1] for run in silent - none)
    summary_lines.append(
        f"{NIGHTS} nights anywhere with EVERGREEN_CHAOS_SEED={SEED}, {time.monotonic() - started:.0f} s:"
    )
    summary_lines += [f"    {end}" for end in ends]

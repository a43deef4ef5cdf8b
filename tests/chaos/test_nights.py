"""Nights of two workers, in which something goes wrong by a seeded schedule; by day, rows arrive and a person decides.

`make slow` lives through a few of them, `make chaos` through thirty. EVERGREEN_CHAOS_NIGHTS sets their number,
EVERGREEN_CHAOS_SEED what happens.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from params.foundation.artifacts import Artifacts
from tasks.history.run_log import read_runs
from tests.chaos.campaign import SEED
from tests.support.faulty_hub import STRANGER, FaultyHub
from tests.support.project import Project, ServedProject, wait_for
from tests.support.sharing import RECORD, TOKEN, Shared, sharing

NIGHTS = int(os.environ.get("EVERGREEN_CHAOS_NIGHTS", "2"))
TROUBLES = ("git refuses", "worker killed", "DVC remote away", "Hub away", "server away", "none")
IS_LONG = len(TROUBLES) <= NIGHTS
REPO, RECIPE = "tests/tiny", "params/tiny.yaml"
RUN = ("python", "-m", "flows.cli", "run", "tiny", *RECORD)
STATUSES = {
    "none": {0},
    "worker killed": {0, -signal.SIGKILL},
    "git refuses": {0, os.EX_UNAVAILABLE},
    "DVC remote away": {0, os.EX_TEMPFAIL},
    "Hub away": {0, os.EX_TEMPFAIL},
    "server away": {os.EX_TEMPFAIL},
}
"""How a night may end; with 0 even if it has nothing to do."""


class Nights:
    """Workers, their remotes and a Prefect server; what has happened so far."""

    def __init__(self, shared: Shared, hub: FaultyHub, office: ServedProject) -> None:
        self.shared, self.hub, self.office = shared, hub, office
        self.chance = random.Random(SEED)
        self.workers = [shared.worker(name) for name in ("east", "west")]
        if IS_LONG:  # else each run has a server of its own
            office.start_server()
            for worker in self.workers:
                for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
                    worker.environment[name] = office.environment[name]
        self.rows = 300
        self.merged = 0
        self.runs: set[str] = set()
        """The ids of all runs that did something."""
        self.outcomes: Counter[str] = Counter()

    def day(self) -> None:
        """New rows may arrive, and a person may decide."""
        if self.chance.random() < 0.6:
            self.rows += 20
            self.shared.add_rows(self.rows)
        for proposal in self.open_proposals():
            decision = self.chance.choice(("merge", "merge", "close", "wait"))
            if decision == "merge":
                self.shared.api.merge_pull_request(REPO, proposal)
                self.merged += 1
            elif decision == "close":
                self.shared.api.change_discussion_status(REPO, proposal, "closed")

    def night(self, trouble: str) -> None:
        """A run on one of the workers."""
        worker = self.chance.choice(self.workers)
        self.update(worker)
        delay_s = self.chance.uniform(1, 12)
        with self.in_trouble(trouble):
            process = worker.start(*RUN, log="flow.log", fork=True)
            if trouble == "worker killed":
                self.kill(worker, process, delay_s)
            status = process.wait(300)
        output = (worker.root / "flow.log").read_text()
        assert status in STATUSES[trouble], f"{trouble}: {status}\n{output}"
        assert "Traceback" not in output, output
        self.outcomes[f"{trouble}: {'nothing to do' if 'nothing has changed' in output else status}"] += 1
        self.look()

    def update(self, worker: Project) -> None:
        """As docs/deployment.md says for a folder that stays."""
        worker.run("git", "fetch", "-q")
        worker.run("git", "reset", "-q", "--hard", "origin/main")

    @staticmethod
    def kill(worker: Project, process: subprocess.Popen[bytes], delay_s: float) -> None:
        """Kill a run with all that it has started, unless it ends before."""
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        wait_for(lambda: not worker.processes(), "the end of all that the run has started", 60)

    @contextmanager
    def in_trouble(self, trouble: str) -> Iterator[None]:
        """While it lasts, something of what the workers share does not work."""
        if trouble == "server away":
            self.office.stop_server()
        try:
            with self.shared.in_trouble(trouble, self.hub):
                yield
        finally:
            if trouble == "server away":
                self.office.start_server()

    def look(self) -> None:
        """What must hold after each night."""
        for worker in self.workers:
            artifacts = Artifacts("tiny", worker.root)
            self.runs |= {entry.run_id for entry in read_runs(artifacts)}
            for note in artifacts.unfinished_runs.glob("*.json"):
                self.runs.add(json.loads(note.read_text())["run_id"])
        recorded = [json.loads(line)["run_id"] for line in self.recorded("runs/tiny/runs.jsonl").splitlines()]
        assert len(recorded) == len(set(recorded)), "a run is in the log once"
        assert len(self.open_proposals()) <= 1
        if self.shared.api.repo_exists(REPO):
            commits = self.shared.api.list_repo_commits(REPO)
            assert len(commits) == 1 + self.merged, "nothing is published that nobody has merged, and nothing twice"

    def recorded(self, path: str) -> str:
        """A file on main of the git remote; empty if it has none."""
        bare = Project(self.shared.git, self.shared.prefect_home)
        status, text = bare.run_and_report("git", "show", f"main:{path}")
        return "" if status else text

    def open_proposals(self) -> list[int]:
        if not self.shared.api.repo_exists(REPO):
            return []
        found = self.shared.api.get_repo_discussions(REPO, discussion_status="open")
        return [one.num for one in found if one.is_pull_request]


@pytest.fixture
def nights(tmp_path: Path, make_prefect_home: Callable[[], Path]) -> Iterator[Nights]:
    def prepare(author: Project) -> None:
        author.edit(RECIPE, "endpoint: local", "approval: pull_request, timeout_s: 3")
        author.edit(RECIPE, "resamples: 200", "resamples: 200, margin: 100")
        author.edit("flows/retrain.py", "retries=3", "retries=1")  # a night in a minute
        author.edit("flows/retrain.py", "retry_delay_seconds=[5, 30, 120]", "retry_delay_seconds=1")
        author.edit("flows/record/recording.py", "_WAITS_S = (2.0, 10.0, 30.0)", "_WAITS_S = (0.5, 0.5, 0.5)")

    hub = FaultyHub(tmp_path / "hub", tokens={TOKEN: "tests"})
    office = ServedProject(tmp_path, make_prefect_home())
    with sharing(tmp_path, Path(office.environment["PREFECT_HOME"]), hub, prepare) as shared:
        shared.workers.append(office)
        shared.api.headers = STRANGER
        yield Nights(shared, hub, office)


@pytest.mark.slow  # tests/unit/flows/test_record.py and tests/e2e/test_any_worker.py show it night by night
@pytest.mark.timeout(120 + 60 * NIGHTS)
def test_whatever_goes_wrong_every_run_is_in_the_log_and_only_what_was_merged_is_out(
    nights: Nights, summary_lines: list[str]
) -> None:
    started = time.monotonic()
    troubles: list[str] = []
    while len(troubles) < NIGHTS:
        troubles += nights.chance.sample(TROUBLES, len(TROUBLES)) if IS_LONG else TROUBLES
    for trouble in troubles[:NIGHTS]:
        nights.day()
        nights.night(trouble)
    outputs = []
    for worker in (*nights.workers, nights.workers[0]):  # quiet nights
        nights.update(worker)
        outputs.append(worker.run(*RUN))
        nights.look()
    assert "nothing has changed" in outputs[-1]

    recorded = nights.recorded("runs/tiny/runs.jsonl").splitlines()
    assert {json.loads(line)["run_id"] for line in recorded} == nights.runs
    tags = nights.shared.api.list_repo_refs(REPO).tags
    commits = nights.shared.api.list_repo_commits(REPO)
    assert {tag.target_commit for tag in tags} == {commit.commit_id for commit in commits[:-1]}
    user = nights.shared.worker("user")
    assert user.repro("--pull") == []
    assert user.run("git", "status", "--porcelain") == ""
    summary_lines.append(f"{NIGHTS} nights with EVERGREEN_CHAOS_SEED={SEED}, in {time.monotonic() - started:.0f} s:")
    summary_lines += [f"    {name}: {count}" for name, count in sorted(nights.outcomes.items())]
    summary_lines.append(f"    {len(recorded)} runs are in the log, {nights.merged} releases were merged")

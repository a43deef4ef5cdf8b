"""Nights of the deployment `default-anywhere`: each run has a clone that is deleted after it, and something goes wrong.

`make test` lives through one of them, `make slow` through one of each kind, `make chaos` through thirty. EVERGREEN_CHAOS_NIGHTS sets their number,
EVERGREEN_CHAOS_SEED what happens, EVERGREEN_CHAOS_TROUBLES which kinds of nights, separated by commas.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.run.untold_releases import EVENT
from tasks.digests import PROVENANCE
from tasks.hub_server.store import RepositoryStore
from tests.chaos.campaign import SEED
from tests.chaos.test_full_disk import fill
from tests.support.faulty_hub import STRANGER, FaultyHub
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
    "disk full in ingest",
    "disk full in train",
    "disk full in the record",
    "proposal merged",
    "proposal closed",
    "server restarted twice",
    "Hub empty",
    "DVC remote not mounted",
    "DVC remote full",
    "start rolled back",
    "lost after the release",
)
"""`disk lost`: git refuses, and what the worker has kept is gone before the next night. A proposal of an evening run is decided
while the next one trains; then approval is switched off. `Hub empty`: the workers' Hub is another one, as with a wrong address.
`start rolled back`: a person rolls back while the run trains. `lost after the release`: the machine is lost as soon as the Hub has it."""
FULL_AT = {
    "disk full in ingest": "tasks ingest",
    "disk full in train": "tasks train",
    "disk full in the record": "flows.dvc_project.push",
}
"""What runs when the worker's disk gets full, and stays so until the night has ended."""
NEEDED_RELEASES = {"Hub empty": 1, "start rolled back": 2}
"""How many releases there must be before such a night."""
DISK = "400m"
REPO, RELEASES = "tests/tiny", "releases"
SHORT = ("disk lost",)
CHOSEN = os.environ.get("EVERGREEN_CHAOS_TROUBLES", ",".join(TROUBLES)).split(",")
NIGHTS = max(len(CHOSEN), int(os.environ.get("EVERGREEN_CHAOS_NIGHTS", "0")))
ENDS = {
    "Published": "published",
    "Kept the champion": "kept",
    "Proposed": "proposed",
    "Refused": "refused",
    "Failed": "failed",
    "Crashed": "crashed",
    "Cancelled": "cancelled",
}
"""What the log must call a run by the name of its last state. One with nothing to do is in no log."""


class Nights:
    """A Prefect server, a worker, and their remotes; what has happened so far."""

    def __init__(
        self, shared: Shared, hub: FaultyHub, office: ServedProject, worker: Project, disk: Path, *, fork: bool
    ) -> None:
        self.shared, self.hub, self.office, self.worker, self.disk = shared, hub, office, worker, disk
        self.fork = fork
        """Whether the processes of a run are forked from those of the tests, which takes half of the time."""
        self.chance = random.Random(SEED)
        self.rows = 300
        self.states: dict[str, tuple[str, str]] = {}
        """Name and message of the last state of each run, by its id."""
        self.decided: Counter[str] = Counter()
        self.rolled_back: set[str] = set()
        """Commits from which a person rolled back while a run trained."""

    def start(self) -> None:
        self.office.start_server()
        self.office.deploy("--name", "tiny-anywhere")
        self.deployment = self.office.post("deployments/filter")[0]["id"]
        self.start_worker()

    def start_worker(self) -> None:
        self.process = self.worker.start(
            "prefect", "worker", "start", "--pool", "local", log="worker.log", fork=self.fork
        )

    def night(self, trouble: str) -> str:
        """A run of the deployment, after one in the evening if a proposal is decided; return the names of their last states."""
        proposal = trouble.startswith("proposal")
        ends = [self.run("none") for _ in range(NEEDED_RELEASES.get(trouble, 0) - self.releases())]
        if trouble == "start rolled back":
            self.push_recipe("model:\n", "model:\n  start: champion\n")
        if proposal:
            self.push_recipe("timeout_s: 3", "timeout_s: 3, approval: pull_request")
            ends.append(self.run("none"))
        ends.append(self.run(trouble))
        if proposal:
            self.push_recipe("timeout_s: 3, approval: pull_request", "timeout_s: 3")
        if trouble == "start rolled back":
            self.push_recipe("model:\n  start: champion\n", "model:\n")
        return ", then ".join(ends)

    def run(self, trouble: str) -> str:
        """A run of the deployment; return the name of its last state."""
        self.rows += 20
        self.push_rows(range(0, self.rows, 2) if trouble == "bad rows" else ())
        path = f"deployments/{self.deployment}/create_flow_run"
        run = self.office.post(path, state={"type": "SCHEDULED"})["id"]
        with self.shared.in_trouble("git refuses" if trouble == "disk lost" else trouble, self.hub):
            self.interfere(trouble, run)
            wait_for(lambda: self.has_ended(run), f"the end of the night: {trouble}", 600, every_s=1)
        wait_for(lambda: not self.processes(run), "the end of all that the run has started", 60)
        (self.disk / "ballast").unlink(missing_ok=True)
        state = self.state(run)
        self.states[run] = state["name"], state["message"] or ""
        self.look_at_reports(state["message"] or "")
        if trouble in {"machine lost", "disk lost"}:
            for folder in self.disk.iterdir():
                wait_for(partial(is_deleted, folder), f"{folder} to be gone", 60)
            (self.disk / "clones").mkdir()
        elif trouble == "lost after the release":  # the machine starts again, with what it has kept
            for clone in (self.disk / "clones").iterdir():
                wait_for(partial(is_deleted, clone), f"{clone} to be gone", 60)
        return state["name"]

    def interfere(self, trouble: str, run: str) -> None:
        """What happens while the run is under way."""
        if trouble in {"flow killed", "machine lost"}:
            self.wait_for_state(run, "RUNNING")
            time.sleep(self.chance.uniform(1, 15))
            self.kill(run, with_worker=trouble == "machine lost")
        elif trouble in FULL_AT:
            wait_for(lambda: self.is_at(run, FULL_AT[trouble]), FULL_AT[trouble], 300, every_s=0.02)
            wait_for(lambda: fill(self.disk / "ballast", 0) or self.has_ended(run), "the end", 600, every_s=0.2)
        elif trouble.startswith("proposal"):
            [proposal] = [one.num for one in self.shared.api.get_repo_discussions(REPO, discussion_status="open")]
            wait_for(lambda: self.is_at(run, "tasks train"), "the training", 300, every_s=0.05)
            if trouble == "proposal merged":
                self.shared.api.merge_pull_request(REPO, proposal)
            else:
                self.shared.api.change_discussion_status(REPO, proposal, "closed")
            self.decided[trouble] += 1
        elif trouble == "start rolled back":
            self.roll_back_while_it_trains(run)
        elif trouble == "lost after the release":
            before = self.releases()
            wait_for(lambda: self.releases() > before or self.has_ended(run), "a release", 300, every_s=0.05)
            if not self.has_ended(run):
                self.kill(run, with_worker=True)
        elif trouble == "server restarted twice":
            self.wait_for_state(run, "RUNNING")
            for _ in range(2):
                time.sleep(self.chance.uniform(1, 5))
                self.office.stop_server()
                self.office.start_server()

    def releases(self) -> int:
        """How many releases the Hub has."""
        return len(self.shared.api.list_repo_refs(REPO).tags) if self.shared.api.repo_exists(REPO) else 0

    def roll_back_while_it_trains(self, run: str) -> None:
        """A person rolls back from what is out, which the run may have started from, and logs it."""
        wait_for(lambda: self.is_at(run, "tasks train") or self.has_ended(run), "the training", 300, every_s=0.05)
        history = [one.commit_id for one in self.shared.api.list_repo_commits(REPO)]
        tags = {one.target_commit: one.name for one in self.shared.api.list_repo_refs(REPO).tags}
        released = [tags[commit] for commit in history if commit in tags]
        self.rolled_back.add(history[0])
        person = self.shared.worker(f"person-{len(self.states)}")
        person.run(
            "python", "-m", "flows.cli", "rollback", released[1], "--recipe", "tiny", "--by", "ann", "--why", "leaked"
        )
        person.run("git", "commit", "-qam", "the rollback, logged")
        person.run("git", "pull", "-q", "--rebase", "origin", "main")
        person.run("git", "push", "-q", "origin", "HEAD:main")

    def wait_for_state(self, run: str, kind: str) -> None:
        wait_for(lambda: self.state(run)["type"] == kind, f"the run to be {kind}", 120, every_s=0.5)

    def is_at(self, run: str, words: str) -> bool:
        """Whether a process of the run has `words` in its command line."""
        assert not self.has_ended(run), self.state(run)
        lines = []
        for process in self.processes(run):
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(process.cmdline()))
        return any(words in line for line in lines)

    def push_recipe(self, old: str, new: str) -> None:
        """Change the recipe, as a push of its author does."""
        author = self.shared.workers[0]
        author.run("git", "pull", "-q", "origin", "main")
        author.edit("params/tiny.yaml", old, new)
        author.run("git", "commit", "-q", "-am", "the recipe")
        author.run("git", "push", "-q", "origin", "main")

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
                its_run = process.environ().get("PREFECT__FLOW_RUN_ID", "").replace("-", "")
                if its_run == run.replace("-", "") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

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

    def storage(self) -> dict[str, int]:
        """Bytes in each place that keeps something, after what operation.md's table says bounds it, two days later."""
        clone = self.shared.worker(f"clean-{len(self.states)}")
        clone.run("dvc", "gc", "--quiet", "--force", "--cloud", "--rev", "origin/main", "--num", "30")
        shutil.rmtree(clone.root)
        self.office.run("git", "fetch", "-q", "origin")
        self.office.run("python", "-m", "flows.cli", "clean", "--shared-cache", "--yes")
        past = time.time() - 2 * 86_400
        for path in filter(Path.is_file, self.hub.root.rglob("*")):
            os.utime(path, (past, past))
        RepositoryStore(self.hub.root).prune(remove=True)
        places = {
            "Hub": self.hub.root,
            "DVC remote": self.shared.folder / "storage",
            "git": self.shared.git,
            "worker": self.disk,
        }
        found = {}
        for name, place in places.items():
            files = [path.stat() for path in place.rglob("*") if path.is_file()]
            found[name] = sum({file.st_ino: file.st_size for file in files}.values())
        refs = self.shared.api.list_repo_refs(REPO, include_pull_requests=True)
        return found | {RELEASES: len(refs.tags) + len(refs.pull_requests or ())}

    def start_of(self, commit: str) -> str | None:
        """The commit of the release that a release has started from."""
        file = self.shared.api.hf_hub_download(REPO, PROVENANCE, revision=commit, local_dir=self.office.root / commit)
        start = json.loads(Path(file).read_bytes()).get("start")
        return start and start["commit"]

    def logged(self, name: str) -> list[dict[str, Any]]:
        """A log on main of the git remote."""
        bare = Project(self.shared.git, self.shared.prefect_home)
        status, text = bare.run_and_report("git", "show", f"main:runs/tiny/{name}")
        return [] if status else [json.loads(line) for line in text.splitlines()]

    def untold_by_their_own(self) -> set[str]:
        """Commits of the releases whose runs did not end in a state that tells of them."""
        released = {entry["commit"] for entry in self.logged("release/log.jsonl") if entry["event"] == "published"}
        told = {
            entry["commit"]
            for entry in self.logged("runs.jsonl")
            if entry["outcome"] == "published" and self.states[entry["run_id"]][0] in {"Published", "Not recorded"}
        }
        return released - told

    def told_by_later_runs(self) -> set[str]:
        """Commits of the releases of which the server has got an event."""
        found = self.office.post("events/filter", filter={"event": {"name": [EVENT]}})["events"]
        return {event["resource"]["prefect.resource.id"].rpartition(".")[2] for event in found}


def is_deleted(folder: Path) -> bool:
    """Delete a folder; whether it is gone, although a worker may delete the same files, or write there."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The disk of the worker: its clones, and the cache that outlives them."""
    made = tmp_path / "disk"
    made.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", made]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    (made / "clones").mkdir()
    yield made
    if not mounted.returncode:
        subprocess.run(["umount", made], check=True)


@pytest.fixture
def nights(
    tmp_path: Path, disk: Path, make_prefect_home: Callable[[], Path], request: pytest.FixtureRequest
) -> Iterator[Nights]:
    def prepare(author: Project) -> None:
        author.edit("params/tiny.yaml", "endpoint: local", "timeout_s: 3")
        author.edit("params/tiny.yaml", "launch: {", "launch: {mirror: last, ")
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
            "CACHE": str(disk / "cache"),
            "TMPDIR": str(disk / "clones"),
        }
        shared.workers += [worker, office]
        for one in (office, worker):
            one.root.mkdir()
        office.run("git", "clone", "-q", str(shared.git), ".")
        office.run("dvc", "config", "-q", "--local", "cache.dir", str(disk / "cache"))
        write_deployment(office.root / "prefect.yaml", shared)
        made = Nights(shared, hub, office, worker, disk, fork=request.node.callspec.id == "one")
        made.start()
        yield made


@pytest.mark.parametrize("kinds", [SHORT, pytest.param(CHOSEN, marks=pytest.mark.slow)], ids=["one", "many"])
@pytest.mark.timeout(600 + 180 * NIGHTS)  # some nights are two or three runs
def test_every_night_is_in_the_history_once_with_its_end(
    nights: Nights, kinds: Sequence[str], summary_lines: list[str]
) -> None:
    started = time.monotonic()
    needs_mounts = {*FULL_AT, "DVC remote full"}
    troubles = [kind for kind in kinds if kind not in needs_mounts or nights.disk.is_mount()]
    while kinds is CHOSEN and len(troubles) < NIGHTS:
        troubles.append(nights.chance.choice(troubles))
    if kinds is CHOSEN:
        nights.chance.shuffle(troubles)  # else the first ten are those that keep the least
    ends, storage = [], []
    for night, trouble in enumerate(troubles, 1):
        ends.append(f"{trouble}: {nights.night(trouble)}")
        if len(troubles) > 10 and (night <= 10 or night == len(troubles)):
            storage.append(nights.storage())
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
    assert not [path for path in (nights.disk / "clones").iterdir() if path.name.endswith("prefect")], (
        "clones are deleted"
    )
    published = {entry["tag"] for entry in nights.logged("release/log.jsonl") if entry["event"] == "published"}
    refs = nights.shared.api.list_repo_refs(REPO)
    assert published == {tag.name for tag in refs.tags}
    for tag in refs.tags:
        started_from = nights.start_of(tag.target_commit)
        assert started_from is None or started_from not in nights.rolled_back, (
            "the child of a model that was rolled back"
        )
    untold = nights.untold_by_their_own()
    # The server writes an event down some seconds after it got it.
    wait_for(lambda: nights.told_by_later_runs() == untold, "people to get a message of each release", 30, every_s=0.5)
    assert "checkpoints" in {branch.name for branch in refs.branches}, "the mirror"
    events = Counter(entry["event"] for entry in nights.logged("release/log.jsonl"))
    assert events["rejected"] == nights.decided["proposal closed"]
    assert not list(nights.shared.api.get_repo_discussions(REPO, discussion_status="open"))
    # One that is killed makes no report, a full disk takes none, and without its remote a run ends before there is anything to report.
    why_none = ("No space left", "a share may not be mounted there")
    none = {
        run
        for run, (name, message) in nights.states.items()
        if name == "Crashed" or any(why in message for why in why_none)
    }
    silent = {run for run in expected if "report: file://" not in nights.states[run][1]}
    assert silent <= none, "\n\n".join(nights.states[run][1] for run in silent - none)
    summary_lines.append(
        f"{len(troubles)} nights anywhere with EVERGREEN_CHAOS_SEED={SEED}, {time.monotonic() - started:.0f} s:"
    )
    summary_lines += [f"    {end}" for end in ends]
    if storage:
        *ten, last = storage
        # The most of ten, because a disk that was lost in the tenth is empty.
        first = {name: max(one[name] for one in ten) for name in last}
        releases = last[RELEASES] / first[RELEASES]  # they stay
        summary_lines.append(
            f"    releases and proposals: {first[RELEASES]} after 10 nights, {last[RELEASES]} in the end"
        )
        for name in first.keys() - {RELEASES}:
            size, before = last[name], first[name]
            summary_lines.append(f"    {name}: {before / 2**20:.1f} MiB after 10 nights, {size / 2**20:.1f} in the end")
            assert size <= before * max(3, 1.3 * releases * (name == "Hub")), name

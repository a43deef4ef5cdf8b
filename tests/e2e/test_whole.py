"""The whole: PostgreSQL, a Prefect server, workers that share a git remote, a DVC remote and a Hub, and a person who approves.

A worker is lost in mid-training together with its folder, and another one goes on with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

from tasks.hub_server.server import LocalHub
from tests.support.postgresql import postgresql
from tests.support.project import Project, ServedProject, wait_for
from tests.support.sharing import RECORD, TOKEN, Shared, sharing, write_deployment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
REPO, RECIPE, STEPS = "tests/tiny", "params/tiny.yaml", 1500
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class Team:
    """What the workers share, the office with the Prefect server, and the workers that have been started."""

    def __init__(self, shared: Shared, office: ServedProject) -> None:
        self.shared, self.office = shared, office

    def start_worker(self, name: str) -> Project:
        """A machine: an empty folder, in which the runs' clones and DVC's cache are, too."""
        root = self.shared.folder / name
        (root / "tmp").mkdir(parents=True)
        worker = Project(root, Path(self.office.environment["PREFECT_HOME"]))
        worker.environment = self.office.environment | {
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "CACHE": str(root / "cache"),
            "TMPDIR": str(root / "tmp"),
            "HF_HOME": str(root / "hf"),
        }
        self.shared.workers.append(worker)
        worker.start("prefect", "worker", "start", "--pool", "local", "--name", name, log="worker.log", fork=True)
        return worker

    def lose(self, worker: Project) -> None:
        """Kill all processes of a machine, and delete its folder."""
        (started,) = worker.started
        with suppress(psutil.NoSuchProcess):
            tree = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
            for process in tree:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        started.wait()
        wait_for(lambda: not processes_below(worker.root), "the end of all that ran there", 60)
        shutil.rmtree(worker.root)

    def ask(self) -> str:
        """Ask for a run; its id."""
        known = self.runs()
        self.office.run("prefect", "deployment", "run", "retrain/tiny-anywhere")
        (new,) = self.runs().keys() - known.keys()
        return new

    def run(self) -> dict:
        """Ask for a run, and wait for its end."""
        asked = self.ask()
        self.wait_for_end(asked, 300)
        return self.runs()[asked]

    def wait_for_end(self, run: str, timeout_s: float) -> None:
        wait_for(lambda: self.runs()[run]["state_type"] in ENDED, "the end of the run", timeout_s, every_s=1)

    def runs(self) -> dict[str, dict]:
        found = self.office.post("flow_runs/filter", deployments={"name": {"any_": ["tiny-anywhere"]}})
        return {run["id"]: run for run in found}

    def log(self, run: str) -> str:
        pages = (
            self.office.post("logs/filter", logs={"flow_run_id": {"any_": [run]}}, offset=o) for o in range(0, 800, 200)
        )
        return "\n".join(line["message"] for page in pages for line in page)

    def last_checkpoint(self) -> int:
        """The step of the checkpoint on the Hub; 0 without one."""
        try:
            path = self.shared.api.hf_hub_download(
                REPO,
                "last-checkpoint/trainer_state.json",
                revision="checkpoints",
                local_dir=self.shared.folder / "looked",
            )
        except (RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError):
            return 0
        return int(json.loads(Path(path).read_text())["global_step"])


def processes_below(folder: Path) -> list[psutil.Process]:
    """Living processes that work in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


@pytest.fixture
def team(tmp_path: Path, make_prefect_home: Callable[[], Path]) -> Iterator[Team]:
    def prepare(author: Project) -> None:
        author.edit(RECIPE, "endpoint: local", "approval: pull_request")
        author.edit(RECIPE, "eval_batch_size: 32", "eval_batch_size: 32, mirror: last")
        author.edit(RECIPE, "max_steps: 20", f"max_steps: {STEPS}")
        author.edit(RECIPE, "eval_steps: 10", "eval_steps: 250")
        author.edit(RECIPE, "save_steps: 5", "save_steps: 50")

    home = make_prefect_home()
    hub = LocalHub(tmp_path / "hub", tokens={TOKEN: "tests"})
    with postgresql() as database, sharing(tmp_path, home, hub, prepare) as shared:
        office = ServedProject(tmp_path / "office", home)
        shared.workers.append(office)
        names = ("HF_ENDPOINT", "HF_TOKEN")
        office.environment |= {name: shared.workers[0].environment[name] for name in names}
        office.root.mkdir()
        office.run("git", "clone", "-q", str(shared.git), ".")
        write_deployment(office.root / "prefect.yaml", shared)
        address = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database.url("prefect")}
        before, office.environment = office.environment, office.environment | address
        office.start_server()
        office.environment = before
        office.deploy("--name", "tiny-anywhere")
        office.run("python", "-m", "flows.cli", "watch", "120")
        yield Team(shared, office)


def test_a_machine_is_lost_and_another_one_ends_its_work_which_a_person_approves(team: Team) -> None:
    shared, api = team.shared, team.shared.api
    shared.add_rows(320)
    first = team.start_worker("first")
    lost = team.ask()
    wait_for(lambda: team.last_checkpoint() > 0, "a checkpoint on the Hub", 300, every_s=0.5)
    team.lose(first)
    assert team.last_checkpoint() < STEPS, "it was in mid-training"
    assert shared.commits()[0] == "new rows", "it has recorded nothing"

    second = team.start_worker("second")
    next_run = team.ask()  # it waits for its turn until the server has noticed that nothing is left of the first
    team.wait_for_end(next_run, 600)
    runs = team.runs()
    assert (runs[lost]["state_type"], runs[next_run]["state_name"]) == ("CRASHED", "Proposed"), team.log(next_run)
    assert "fetch: step " in team.log(next_run)
    assert " resumes at step " in team.log(next_run)

    left_alone = shared.worker("left-alone")
    left_alone.run("git", "checkout", "-q", "HEAD~1")  # before the run was recorded
    left_alone.edit(RECIPE, "mirror: last", "mirror: none")
    left_alone.stages(RECIPE, ("ingest", "validate", "tokenize", "train"))
    golden = hashlib.sha256((left_alone.root / "runs/tiny/model/model.safetensors").read_bytes()).hexdigest()
    (proposed,) = api.get_paths_info(REPO, ["model.safetensors"], revision="refs/pr/1")
    assert proposed.lfs.sha256 == golden
    assert shared.commits()[0].startswith("Record tiny: proposed release-")
    assert api.list_repo_refs(REPO).tags == []

    api.merge_pull_request(REPO, 1)
    merged = api.list_repo_commits(REPO)[0].commit_id
    approved = team.run()
    assert approved["state_name"] == "Published", team.log(approved["id"])
    (tag,) = api.list_repo_refs(REPO).tags
    assert tag.target_commit == merged
    assert shared.commits()[0] == f"Record tiny: published {tag.name}"

    commits = shared.commits()
    assert team.run()["state_name"] == "Nothing new"
    team.lose(second)
    team.start_worker("third")
    assert team.run()["state_name"] == "Nothing new"
    assert shared.commits() == commits
    assert len(api.list_repo_commits(REPO)) == 2

    user = shared.worker("user")
    assert user.repro("--pull") == []
    assert user.json("runs/tiny/release/receipt.json")["commit"] == merged
    outcomes = [json.loads(line)["outcome"] for line in (user.root / "runs/tiny/runs.jsonl").read_text().splitlines()]
    assert outcomes == ["crashed", "proposed", "published"], "the next run has logged the lost one"
    assert "nothing has changed" in shared.worker("last").run("python", "-m", "flows.cli", "run", "tiny", *RECORD)

"""Recording runs on a branch of a real git remote: races, refusals, merges, and a checkout that stays as it is."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.deployments.steps import git_clone

from flows.dvc_project import lock_file as dvc_lock
from flows.record import recording as record
from flows.record.outside_clone import keep_outside_of_clone, repository_of_address
from flows.record.recording import RecordTarget, UnrecordedRunError, record_run_after_block
from flows.run.report_copies import keep_report, with_report
from params import DataError, ModelError, RecipeError, RemoteRefusedError, StorageError, TransientError
from params.foundation.artifacts import KEPT_FOLDER, Artifacts, write_text_atomically
from params.foundation.stages import STAGES
from tasks.evaluation.report import Blessing, EvaluationReport, HeldOutRowUse
from tasks.history.run_log import RunEntry, append_run, read_runs
from tasks.release_log.receipt import Receipt
from tasks.report.timings import StageTiming
from tasks.stages import read_log_and_unrecorded, read_report, save_report
from tests.support import forked, tiny
from tests.support.project import ROOT, free_port
from tests.unit.tasks.history.example import entry

log = logging.getLogger("test")
TO = RecordTarget(remote="origin", branch="main")
RAN = {stage: "unchanged" if stage in STAGES[:3] else "ran" for stage in STAGES}
LOCK = "schema: '2.0'\nstages:\n"
ENTRY = """\
  train@{recipe}:
    cmd: exec python -m tasks train params/{recipe}.yaml
    deps:
    - path: runs/{recipe}/tokens
      hash: md5
      md5: 0123456789abcdef0123456789abcdef.dir
      size: 12
      nfiles: 3
    params:
      params/{recipe}.yaml:
        seed: 3
        training:
          learning_rate: 0.01
    outs:
    - path: runs/{recipe}/model
      hash: md5
      md5: {number:032d}.dir
      size: 12
      nfiles: 3
"""


def git(folder: Path, *command: str) -> str:
    own = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(["git", *command], cwd=folder, env=own, check=True, capture_output=True, text=True)
    return done.stdout.strip()


class Worker:
    """A clone of the project in which recipes have run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def ran(self, recipe: str, number: int, *, status: str = "published") -> Artifacts:
        """Leave what a run leaves: its entry in dvc.lock, small files, a line in the log."""
        lock = self.root / "dvc.lock"
        text = lock.read_text() if lock.exists() else LOCK
        entry = dvc_lock.parse_recipe_stages(LOCK + ENTRY.format(recipe=recipe, number=number), recipe, where="")
        lock.write_text(dvc_lock.with_recipe_stages(text, entry, recipe, where=""))
        artifacts = Artifacts(recipe, self.root)
        verdict = {"published": "publish", "kept": "keep", "refused": "refuse"}[status]
        judged = {"verdict": verdict, "reasons": ["loss is 0.5 better"], "metric": "loss", "first_release": False}
        hashes = {"model": f"{number}", "data": "d", "recipe": "r", "champion": None}
        save_report(Blessing.model_validate(judged | hashes), artifacts.blessing)
        metrics = {"split": "test", "rows": 40, "sequences": 40, "metric": "loss", "verdict": verdict}
        models = {"model": {"loss": number + 0.25}, "untrained": None, "champion": {"loss": 9.75}}
        save_report(EvaluationReport.model_validate(metrics | models), artifacts.report("evaluate"))
        if status != "refused":
            made = {"status": status, "reasons": ["it is better"], "repo_id": "o/n", "endpoint": "local"}
            save_report(Receipt(**made, commit="c" * 40, tag=f"release-{number}", publish_id=None), artifacts.receipt)
        artifacts.release_events.parent.mkdir(exist_ok=True)
        with artifacts.release_events.open("a") as file:
            file.write(json.dumps({"recipe": recipe, "number": number}) + "\n")
        return Artifacts(recipe)

    def state(self) -> tuple[Any, ...]:
        """All that recording must not touch."""
        index = (self.root / ".git/index").read_bytes()
        head = (self.root / ".git/HEAD").read_text()
        return (
            index,
            head,
            git(self.root, "status", "--porcelain", "--ignored", "--", ".", ":!.scratch"),
            git(self.root, "branch", "--format", "%(refname) %(objectname)"),
        )


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A bare repository with the project on main; DVC has no remote."""
    bare, first = tmp_path / "remote.git", tmp_path / "first"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    git(tmp_path, "clone", "-q", str(bare), str(first))
    (first / ".dvc").mkdir()
    (first / ".dvc/config").touch()
    (first / ".gitignore").write_text(".scratch/\n")
    (first / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
    git(first, "checkout", "-q", "-b", "main")
    git(first, "add", "-A")
    git(first, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "the project")
    git(first, "push", "-q", "origin", "main")
    return bare


@pytest.fixture
def worker(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A clone, in which this process works."""
    made = clone(remote, tmp_path / "worker")
    monkeypatch.chdir(made.root)
    return made


def judged(worker: Worker, over: str) -> Artifacts:
    """Leave a run whose model the gate lets pass."""
    artifacts = worker.ran("a", 1)
    blessing = read_report(artifacts, Blessing)
    use = HeldOutRowUse(uses=1.0, comparisons=12) if over == "test_rows" else None
    save_report(blessing.model_copy(update={"row_use": use}), artifacts.blessing)
    return artifacts


def clone(remote: Path, root: Path) -> Worker:
    git(remote.parent, "clone", "-q", str(remote), str(root))
    return Worker(root)


def recorded(remote: Path, path: str) -> str:
    return git(remote, "show", f"main:{path}")


def commits(remote: Path) -> list[str]:
    return git(remote, "log", "--format=%s", "main").splitlines()


def models(remote: Path) -> dict[str, str]:
    """The hashes of the recorded models, by stage."""
    text = recorded(remote, "dvc.lock")
    return {
        name: str(int(entry["outs"][0]["md5"].removesuffix(".dir")))
        for recipe in ("a", "b")
        for name, entry in dvc_lock.parse_recipe_stages(text, recipe, where="").items()
    }


def hook(repository: Path, name: str, script: str) -> None:
    path = repository / "hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


OTHERS = """\
n=$(cat {count} 2>/dev/null || echo 0)
[ "$n" -ge {times} ] && exit 0
echo $((n + 1)) > {count}
unset GIT_DIR GIT_INDEX_FILE
cd {other} && git pull -q && git -c user.name=o -c user.email=o@o commit -q --allow-empty -m other && git push -q
"""
"""A hook before a push: another worker is faster, so many times."""


class TestCommit:
    def test_a_run_is_one_commit_with_its_files_and_figures(self, worker: Worker, remote: Path) -> None:
        record.record_run_on_branch(worker.ran("a", 1), TO, log, RAN)
        assert commits(remote) == ["Record a: published release-1", "the project"]
        files = git(remote, "show", "--name-only", "--format=", "main").splitlines()
        small = ["evaluation/blessing.json", "evaluation/metrics.json", "release/log.jsonl", "release/receipt.json"]
        assert files == ["dvc.lock", *(f"runs/a/{name}" for name in small)]
        for name in files:
            assert recorded(remote, name) == (worker.root / name).read_text().strip()
        message = git(remote, "log", "-1", "--format=%B", "main")
        for words in (
            "verdict: publish\n- loss is 0.5 better\n",
            "loss: 1.25 (champion 9.75)\n",
            "rows: 40 of the test split",
        ):
            assert words in message
        assert "unchanged: ingest, validate, tokenize\nran: train, evaluate, publish\n" in message
        assert message.endswith("[skip ci]")
        assert git(remote, "log", "-1", "--format=%an <%ae> %cn", "main") == "Evergreen <evergreen@localhost> Evergreen"

    def test_the_same_run_is_recorded_once(self, worker: Worker, remote: Path) -> None:
        artifacts = worker.ran("a", 1)
        record.record_run_on_branch(artifacts, TO, log, RAN)
        record.record_run_on_branch(artifacts, TO, log, RAN)
        record.record_run_on_branch(artifacts, TO, log, dict.fromkeys(RAN, "unchanged"))
        assert len(commits(remote)) == 2

    def test_who_commits_is_who_git_says(self, worker: Worker, remote: Path) -> None:
        git(worker.root, "config", "user.name", "Ada")
        record.record_run_on_branch(worker.ran("a", 1), TO, log, RAN)
        assert git(remote, "log", "-1", "--format=%an <%ae> %cn", "main") == "Ada <evergreen@localhost> Ada"

    def test_the_project_may_be_a_folder_of_the_repository(
        self, worker: Worker, remote: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (worker.root / "models/here").mkdir(parents=True)
        (worker.root / ".dvc").rename(worker.root / "models/here/.dvc")
        monkeypatch.chdir(worker.root / "models/here")
        record.record_run_on_branch(Worker(Path.cwd()).ran("a", 1), TO, log, RAN)
        assert recorded(remote, "models/here/dvc.lock") == Path("dvc.lock").read_text().strip()
        assert commits(remote)[0] == "Record a: published release-1"

    @pytest.mark.parametrize("folder", [" odd ü", '"quoted"'])
    def test_the_folder_may_have_an_odd_name(
        self, worker: Worker, remote: Path, monkeypatch: pytest.MonkeyPatch, folder: str
    ) -> None:
        (worker.root / folder).mkdir()
        (worker.root / ".dvc").rename(worker.root / folder / ".dvc")
        monkeypatch.chdir(worker.root / folder)
        record.record_run_on_branch(Worker(Path.cwd()).ran("a", 1), TO, log, RAN)
        assert recorded(remote, f"{folder}/dvc.lock") == Path("dvc.lock").read_text().strip()

    def test_settings_of_git_change_nothing(self, worker: Worker, remote: Path) -> None:
        for setting in [
            "submodule.recurse=true",
            "core.sparseCheckout=true",
            "index.sparse=true",
            "core.autocrlf=true",
            "color.ui=always",
            "push.default=nothing",
            "push.followTags=true",
            "fetch.prune=true",
            "fetch.pruneTags=true",
            "fetch.fsckObjects=true",
            "commit.gpgSign=true",
            "push.gpgSign=if-asked",
            "core.quotePath=true",
            "log.showSignature=true",
            "alias.fetch=version",
            "fetch.output=compact",
            "push.recurseSubmodules=on-demand",
            "core.splitIndex=true",
            "fetch.writeCommitGraph=true",
            "core.abbrev=4",
        ]:
            git(worker.root, "config", *setting.split("="))
        git(worker.root, "tag", "mine")
        artifacts = worker.ran("a", 1)
        record.record_run_on_branch(artifacts, TO, log, RAN)
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert commits(remote) == ["Record a: published release-1", "the project"]
        assert recorded(remote, "dvc.lock") == Path("dvc.lock").read_text().strip()
        assert git(worker.root, "tag") == "mine"
        assert git(remote, "tag") == ""


class TestImports:
    """The .dvc file of imported files that a recipe refreshes, which the flow changes."""

    IMPORT = """\
md5: {md5}
frozen: true
deps:
- path: {origin}
  checksum: {md5}
  hash: md5
outs:
- path: rows.csv
  md5: {md5}
  hash: md5
"""

    @pytest.fixture
    def refreshed(self, worker: Worker, remote: Path) -> Worker:
        """A worker with a recipe that refreshes data/rows.csv; the import is on the branch."""
        source = {"kind": "files", "train": "data/rows.csv", "refresh": True}
        worker.write("params/a.yaml", "")
        tiny.write(worker.root / "params/a.yaml", tiny.recipe({}) | {"data": {"source": source}})
        self.bring(worker, "a")
        git(worker.root, "add", "-A")
        git(worker.root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "an import")
        git(worker.root, "push", "-q")
        return worker

    def bring(self, worker: Worker, letter: str, origin: str = "https://a.example/rows.csv") -> None:
        worker.write("data/rows.csv.dvc", self.IMPORT.format(md5=letter * 32, origin=origin))

    def test_it_is_recorded_with_the_run(self, refreshed: Worker, remote: Path) -> None:
        self.bring(refreshed, "b")
        artifacts = refreshed.ran("a", 1)
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert recorded(remote, "data/rows.csv.dvc") == (refreshed.root / "data/rows.csv.dvc").read_text().strip()
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert len(commits(remote)) == 3
        self.bring(refreshed, "c")
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert recorded(remote, "data/rows.csv.dvc") == (refreshed.root / "data/rows.csv.dvc").read_text().strip()

    def test_who_imports_from_elsewhere_meanwhile_is_not_overruled(
        self, refreshed: Worker, remote: Path, tmp_path: Path
    ) -> None:
        other = clone(remote, tmp_path / "other")
        self.bring(other, "d", "https://b.example/rows.csv")
        git(other.root, "-c", "user.name=o", "-c", "user.email=o@o", "commit", "-q", "-a", "-m", "elsewhere")
        git(other.root, "push", "-q")
        self.bring(refreshed, "b")
        record.record_run_on_branch(refreshed.ran("a", 1), TO, log, RAN)
        assert commits(remote)[0] == "Record a: published release-1"
        assert "https://b.example/rows.csv" in recorded(remote, "data/rows.csv.dvc")

    def test_a_recipe_that_cannot_be_read_has_none(self, refreshed: Worker, remote: Path) -> None:
        self.bring(refreshed, "b")
        refreshed.write("params/a.yaml", "data: 3")
        record.record_run_on_branch(refreshed.ran("a", 1), TO, log, RAN)
        assert commits(remote)[0] == "Record a: published release-1"
        assert "a" * 32 in recorded(remote, "data/rows.csv.dvc")


class TestCheckout:
    def test_a_dirty_checkout_stays_as_it_is(self, worker: Worker, remote: Path) -> None:
        artifacts = worker.ran("a", 1)
        worker.write("staged.txt", "staged")
        git(worker.root, "add", "staged.txt")
        worker.write("staged.txt", "edited since")
        worker.write("untracked.txt", "")
        artifacts.scratch.mkdir(parents=True)
        before = worker.state()
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert worker.state() == before
        assert "staged.txt" not in git(remote, "ls-tree", "-r", "--name-only", "main")

    def test_a_detached_head_and_a_branch_that_is_behind(self, worker: Worker, remote: Path, tmp_path: Path) -> None:
        git(worker.root, "checkout", "-q", "--detach")
        other = clone(remote, tmp_path / "other")
        other.write("news.txt", "news")
        git(other.root, "add", "-A")
        git(other.root, "-c", "user.name=o", "-c", "user.email=o@o", "commit", "-q", "-m", "news")
        git(other.root, "push", "-q")
        before = worker.state()
        record.record_run_on_branch(worker.ran("a", 1), TO, log, RAN)
        assert worker.state()[:2] == before[:2]
        assert commits(remote) == ["Record a: published release-1", "news", "the project"]
        assert recorded(remote, "news.txt") == "news"

    def test_the_shallow_clone_of_a_prefect_worker(
        self, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(3):
            other = clone(remote, tmp_path / f"other-{number}")
            monkeypatch.chdir(other.root)
            record.record_run_on_branch(other.ran("b", number), TO, log, RAN)
        monkeypatch.chdir(tmp_path)
        cloned = git_clone(repository=remote.as_uri(), branch="main")
        worker = Worker(tmp_path / cloned["directory"])
        assert git(worker.root, "rev-parse", "--is-shallow-repository") == "true"
        monkeypatch.chdir(worker.root)
        record.record_run_on_branch(worker.ran("a", 7), TO, log, RAN)
        monkeypatch.chdir(other.root)
        record.record_run_on_branch(other.ran("b", 8), TO, log, RAN)  # the branch moves below the clone
        monkeypatch.chdir(worker.root)
        record.record_run_on_branch(worker.ran("a", 9), TO, log, RAN)
        assert models(remote) == {"train@a": "9", "train@b": "8"}
        assert len(commits(remote)) == 7


class TestMerge:
    def test_two_recipes_that_end_at_once_both_survive(self, remote: Path, tmp_path: Path) -> None:
        code = """
import logging, sys, time
from flows.record.recording import RecordTarget, record_run_on_branch
from params.foundation.artifacts import KEPT_FOLDER, Artifacts, write_text_atomically
from params.foundation.stages import STAGES
logging.basicConfig(level="INFO", stream=sys.stdout)
while time.time() < float(sys.argv[2]):
    time.sleep(0.001)
record_run_on_branch(Artifacts(sys.argv[1]), RecordTarget(), logging.getLogger(), {})
"""
        workers = {recipe: clone(remote, tmp_path / recipe) for recipe in ("a", "b")}
        start = str(time.time() + 2)
        processes = []
        for recipe, worker in workers.items():
            worker.ran(recipe, ord(recipe))
            command = [forked.python(), "-c", code, recipe, start]
            processes.append(
                subprocess.Popen(command, cwd=worker.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            )
        for process in processes:
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 0, said.decode()
        assert models(remote) == {"train@a": str(ord("a")), "train@b": str(ord("b"))}
        assert len(commits(remote)) == 3

    @pytest.mark.parametrize("times", [1, 4])
    def test_a_lost_race_is_run_again(self, worker: Worker, remote: Path, tmp_path: Path, caplog, times: int) -> None:
        other = clone(remote, tmp_path / "other")
        script = OTHERS.format(count=tmp_path / "count", times=times, other=other.root)
        hook(worker.root / ".git", "pre-push", script)
        with caplog.at_level(logging.INFO, logger="test"):
            record.record_run_on_branch(worker.ran("a", 1), TO, log, RAN)
        assert commits(remote) == ["Record a: published release-1", *["other"] * times, "the project"]
        assert caplog.text.count("origin/main has moved meanwhile") == times
        assert models(remote) == {"train@a": "1"}

    def test_who_never_wins_gives_up_and_keeps_the_work(
        self, worker: Worker, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = clone(remote, tmp_path / "other")
        hook(worker.root / ".git", "pre-push", OTHERS.format(count=tmp_path / "count", times=99, other=other.root))
        monkeypatch.setattr(record, "_PUSHES", 3)
        artifacts = worker.ran("a", 1)
        with pytest.raises(TransientError, match="after each of 3 attempts"):
            record.record_run_on_branch(artifacts, TO, log, RAN, waits_s=())
        assert set(commits(remote)) == {"other", "the project"}
        (worker.root / ".git/hooks/pre-push").unlink()
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert models(remote) == {"train@a": "1"}

    def test_stages_of_other_recipes_stay_as_they_are_there(
        self, worker: Worker, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker.ran("b", 1)
        record.record_run_on_branch(worker.ran("a", 1), TO, log, RAN)
        assert models(remote) == {"train@a": "1"}, "b has not recorded its run"
        other = clone(remote, tmp_path / "other")
        monkeypatch.chdir(other.root)
        record.record_run_on_branch(other.ran("b", 2), TO, log, RAN)
        monkeypatch.chdir(worker.root)
        record.record_run_on_branch(worker.ran("a", 3), TO, log, RAN)
        assert models(remote) == {"train@a": "3", "train@b": "2"}

    def test_a_worker_with_an_older_run_does_not_bring_it_back(
        self, worker: Worker, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        artifacts = worker.ran("a", 1)
        record.record_run_on_branch(artifacts, TO, log, RAN)
        newer = clone(remote, tmp_path / "newer")
        monkeypatch.chdir(newer.root)
        record.record_run_on_branch(newer.ran("a", 2), TO, log, RAN)
        for old in (worker, newer, worker, worker):
            monkeypatch.chdir(old.root)
            record.record_run_on_branch(artifacts, TO, log, dict.fromkeys(RAN, "unchanged"))
            assert models(remote) == {"train@a": "2"}
            assert len(commits(remote)) == 3
        monkeypatch.chdir(worker.root)
        for number in (3, 4):
            with artifacts.release_events.open("a") as file:
                file.write(f'{{"number": {number}}}\n')
            record.record_run_on_branch(artifacts, TO, log, dict.fromkeys(RAN, "unchanged"))
            assert models(remote) == {"train@a": "2"}
            assert len(commits(remote)) == number + 1, "of its log it may add lines"

    def test_logs_keep_the_lines_of_both(
        self, worker: Worker, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = clone(remote, tmp_path / "other")
        monkeypatch.chdir(other.root)
        record.record_run_on_branch(other.ran("a", 1), TO, log, RAN)
        monkeypatch.chdir(worker.root)
        worker.ran("a", 2)
        record.record_run_on_branch(worker.ran("a", 3), TO, log, RAN)
        lines = recorded(remote, "runs/a/release/log.jsonl").splitlines()
        assert [json.loads(line)["number"] for line in lines] == [1, 2, 3]

    def test_a_file_that_is_not_here_stays_as_it_is_there(self, worker: Worker, remote: Path) -> None:
        """DVC deletes a stage's outputs before it runs; here publish has failed then."""
        artifacts = worker.ran("a", 1)
        record.record_run_on_branch(artifacts, TO, log, RAN)
        worker.ran("a", 2, status="refused")
        artifacts.receipt.unlink()
        outcomes = {stage: "ran" for stage in STAGES if stage != "publish"}
        record.record_run_on_branch(artifacts, TO, log, outcomes, error=TransientError("publish@a", "b", "c"))
        assert json.loads(recorded(remote, "runs/a/release/receipt.json"))["tag"] == "release-1"
        assert json.loads(recorded(remote, "runs/a/evaluation/blessing.json"))["model"] == "2"

    def test_dvc_lock_is_written_as_dvc_writes_it(self) -> None:
        text = LOCK + ENTRY.format(recipe="a", number=1) + ENTRY.format(recipe="b", number=2)
        for recipe in ("a", "b"):
            stages = dvc_lock.parse_recipe_stages(text, recipe, where="")
            assert list(stages) == [f"train@{recipe}"]
            assert dvc_lock.with_recipe_stages(text, stages, recipe, where="") == text
        assert dvc_lock.with_recipe_stages(
            "", dvc_lock.parse_recipe_stages(text, "b", where=""), "b", where=""
        ) == LOCK + ENTRY.format(recipe="b", number=2)
        with pytest.raises(RecipeError, match=r"origin/main: dvc.lock is damaged there"):
            dvc_lock.with_recipe_stages("<<<<<<< HEAD\nschema: [", {}, "a", where="origin/main")


class TestRefusal:
    @pytest.mark.parametrize("kept", ["dvc.lock", "a log"])
    def test_files_in_git_lfs(self, worker: Worker, remote: Path, tmp_path: Path, kept: str) -> None:
        artifacts = worker.ran("a", 1)
        path = str(artifacts.logs[0]) if kept == "a log" else kept
        other = clone(remote, tmp_path / "other")
        other.write(path, f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12\n")
        git(other.root, "add", "-f", path)
        git(other.root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "in git-lfs")
        git(other.root, "push", "-q")
        with pytest.raises(RecipeError, match=rf"(?s)^{path} on .*main.*: is in git-lfs, .*git lfs untrack {path}"):
            record.record_run_on_branch(artifacts, TO, log, RAN)
        assert commits(remote) == ["in git-lfs", "the project"]

    def test_a_protected_branch(self, worker: Worker, remote: Path) -> None:
        hook(remote, "pre-receive", "echo 'main is protected' >&2; exit 1")
        artifacts = worker.ran("a", 1)
        before = worker.state()
        with pytest.raises(
            RemoteRefusedError, match=r"origin/main: refused the commit: .*hook declined.*main is protected"
        ):
            record.record_run_on_branch(artifacts, TO, log, RAN)
        assert worker.state() == before
        assert commits(remote) == ["the project"]
        (remote / "hooks/pre-receive").unlink()
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert models(remote) == {"train@a": "1"}, "the next run records the work"

    def test_its_log_outlives_a_reset(self, worker: Worker, remote: Path) -> None:
        record.record_run_on_branch(worker.ran("a", 1), TO, log, RAN)
        hook(remote, "pre-receive", "exit 1")
        for number in (2, 3):
            artifacts = worker.ran("a", number)
            with pytest.raises(RemoteRefusedError):
                record.record_run_on_branch(artifacts, TO, log, RAN)
            git(worker.root, "reset", "-q", "--hard", "origin/main")
        (remote / "hooks/pre-receive").unlink()
        for number in (4, 5):
            record.record_run_on_branch(worker.ran("a", number), TO, log, RAN)
            lines = recorded(remote, "runs/a/release/log.jsonl").splitlines()
            assert [json.loads(line)["number"] for line in lines] == [1, 2, 3, 4, 5][:number]
        assert not artifacts.unrecorded.exists()

    def test_its_log_outlives_the_clone(
        self, worker: Worker, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As `default-anywhere` works: each run has a clone of its own, and DVC's cache is beside them."""

        def run(number: int) -> None:
            here = clone(remote, tmp_path / f"clone {number}")
            monkeypatch.chdir(here.root)
            (here.root / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
            artifacts = here.ran("a", number)
            with keep_outside_of_clone(artifacts, TO):
                append_run(artifacts, entry(number))
                if number == 1:  # another run, which goes on, has written a line
                    append_run(Artifacts("a"), entry(7))
                try:
                    record.record_run_on_branch(artifacts, TO, log, RAN)
                finally:
                    monkeypatch.chdir(tmp_path)
                    shutil.rmtree(here.root)
                    left.append(sorted(path.name for path in artifacts.kept.rglob("*.jsonl")))

        left: list[list[str]] = []
        hook(remote, "pre-receive", "exit 1")
        for number in (1, 2):
            with pytest.raises(RemoteRefusedError):
                run(number)
        (remote / "hooks/pre-receive").unlink()
        run(3)
        assert left == [["log.jsonl", "runs.jsonl"]] * 2 + [[]]
        logged = [json.loads(line)["run_id"] for line in recorded(remote, "runs/a/runs.jsonl").splitlines()]
        assert sorted(logged) == sorted(entry(number).run_id for number in (1, 7, 2, 3))
        assert KEPT_FOLDER not in os.environ

    def test_what_a_branch_lacks_goes_to_no_other_branch(
        self, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two deployments of a project on one worker: what one could not record stays its own."""
        git(remote, "branch", "staging", "main")

        def run(number: int, branch: str) -> None:
            here = tmp_path / str(number)
            git(tmp_path, "clone", "-q", "-b", branch, str(remote), str(here))
            monkeypatch.chdir(here)
            write_text_atomically(here / ".dvc/config.local", f"[cache]\n    dir = {tmp_path / 'cache'}\n")
            artifacts, to = Worker(here).ran("a", number), RecordTarget(branch=branch)
            with keep_outside_of_clone(artifacts, to):
                append_run(artifacts, entry(number))
                record.record_run_on_branch(artifacts, to, log, RAN)

        hook(remote, "pre-receive", "exit 1")
        with pytest.raises(RemoteRefusedError):
            run(1, "staging")
        (remote / "hooks/pre-receive").unlink()
        for number, branch in ((2, "main"), (3, "staging")):
            run(number, branch)
        for branch, numbers in (("main", [2]), ("staging", [1, 3])):
            lines = git(remote, "show", f"{branch}:runs/a/runs.jsonl").splitlines()
            assert [json.loads(line)["run_id"] for line in lines] == [entry(number).run_id for number in numbers]

    def test_a_folder_that_cannot_keep_ends_the_run_before_it_does_anything(
        self, worker: Worker, tmp_path: Path
    ) -> None:
        (worker.root / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
        write_text_atomically(tmp_path / "cache/evergreen", "a file where the folder belongs")
        with (
            pytest.raises(StorageError, match="cannot be written: Not a directory"),
            keep_outside_of_clone(worker.ran("a", 1), TO),
        ):
            pytest.fail("a stage might publish now")

    def test_its_report_outlives_the_clone(self, worker: Worker, remote: Path, tmp_path: Path) -> None:
        artifacts = worker.ran("a", 1)
        failed = StageTiming(stage="validate", seconds=1.0, outcome="failed", error="row 3: 'a private text'")
        save_report(failed, artifacts.timings / "validate.json")
        page = artifacts.failed_validation / "report.html"
        write_text_atomically(page, "all failing rows")
        artifacts.page.write_text('<a href="../../.scratch/a/validation-failed/report.html">')
        (worker.root / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
        with keep_outside_of_clone(artifacts, TO):
            keep_report(artifacts, "run")
            found = DataError("a", "b", f"correct them; {page} shows the rows")
            error = with_report(found, artifacts, ["git show it"])
            command = record.record_run_on_branch(artifacts, TO, log, {"ingest": "ran"}, error=error)
        shutil.rmtree(worker.root / ".scratch")
        shown = re.findall(r"(\S+/validation.html) shows the rows\n  report: file://(\S+) on", error.fix)
        assert error.fix.endswith("\n  report without rows of the data: git show it")
        assert [Path(path).read_text() for path in shown[0]] == ["all failing rows", '<a href="validation.html">']
        assert command
        subprocess.run(command, shell=True, check=True, capture_output=True)
        text = (worker.root / "report.html").read_text()
        assert "Failed in validate" in text
        assert "a private text" not in text
        assert "recorded-report.html" not in git(worker.root, "status", "--porcelain")

    def test_lines_that_another_clone_adds_meanwhile_stay(self, worker: Worker, remote: Path) -> None:
        artifacts = worker.ran("a", 1)
        append_run(artifacts, entry(1))
        kept = artifacts.unrecorded / "runs.jsonl"
        worker.write("other", entry(2).model_dump_json() + "\n")
        hook(remote, "post-receive", f"cat {worker.root / 'other'} >> {worker.root / kept}")
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert [run.run_id for run in read_log_and_unrecorded(artifacts, kept, RunEntry)] == [entry(2).run_id]

    def test_a_line_that_was_written_before_a_kill_outlives_a_reset(self, worker: Worker, remote: Path) -> None:
        """The flow logs at its start that the last run was killed; it may be killed itself before it records that."""
        artifacts = worker.ran("a", 1)
        record.record_run_on_branch(artifacts, TO, log, RAN)
        append_run(artifacts, entry(1))
        git(worker.root, "reset", "-q", "--hard", "origin/main")
        git(worker.root, "clean", "-qfd", "runs")
        assert not artifacts.run_log.exists()
        assert read_runs(artifacts) == [entry(1)], "it has happened all the same"
        record.record_run_on_branch(worker.ran("a", 2), TO, log, RAN)
        (line,) = recorded(remote, "runs/a/runs.jsonl").splitlines()
        assert json.loads(line)["run_id"] == entry(1).run_id

    @pytest.mark.parametrize(
        ("to", "words"),
        [
            (
                RecordTarget(branch="nightly"),
                "origin has no branch nightly\n  fix: make it first: git push origin HEAD:refs/heads/ni",
            ),
            (RecordTarget(remote="backup"), "'backup' does not appear to be a git repository"),
        ],
    )
    def test_a_branch_or_remote_that_is_not_there(self, worker: Worker, to: RecordTarget, words: str) -> None:
        with pytest.raises(RemoteRefusedError) as raised:
            record.record_run_on_branch(worker.ran("a", 1), to, log, RAN)
        assert words in str(raised.value)

    @pytest.mark.parametrize("user", ["user:secret", "secret", "secret:x-oauth-basic"])
    def test_a_remote_that_does_not_answer(self, worker: Worker, remote: Path, caplog, user: str) -> None:
        artifacts = worker.ran("a", 1)
        git(worker.root, "remote", "set-url", "origin", f"http://{user}@127.0.0.1:{free_port()}/x.git")
        before = worker.state()
        with pytest.raises(TransientError, match="cannot read the branch") as raised:
            record.record_run_on_branch(artifacts, TO, log, RAN, waits_s=(0.1, 0.1))
        assert caplog.text.count("tries again to record the run in 0.1 s") == 2
        assert "secret" not in caplog.text + str(raised.value)
        assert worker.state() == before
        git(worker.root, "remote", "set-url", "origin", str(remote))
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert models(remote) == {"train@a": "1"}

    @pytest.mark.parametrize("over", ["release", "test_rows"])
    def test_a_model_is_not_released_if_its_run_cannot_be_recorded(
        self, worker: Worker, remote: Path, over: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        artifacts = judged(worker, over)
        evaluated = {stage: outcome for stage, outcome in RAN.items() if stage != "publish"}
        git(worker.root, "remote", "set-url", "--push", "origin", str(remote.parent / "nowhere"))
        with pytest.raises(RemoteRefusedError, match="nowhere"):
            record.ensure_recordable_before_publish(artifacts, TO, evaluated, log)
        git(worker.root, "remote", "set-url", "--push", "origin", f"http://127.0.0.1:{free_port()}/x.git")
        monkeypatch.setattr(record, "_WAITS_S", (0.1,))
        monkeypatch.setitem(record.record_run_on_branch.__kwdefaults__, "waits_s", (0.1,))
        with pytest.raises(TransientError):
            record.ensure_recordable_before_publish(artifacts, TO, evaluated, log)
        assert commits(remote) == ["the project"]
        git(worker.root, "remote", "set-url", "--push", "origin", str(remote))
        record.ensure_recordable_before_publish(artifacts, TO, evaluated, log)
        assert commits(remote) == [
            *(["Record a: evaluated, verdict publish"] if over == "test_rows" else []),
            "the project",
        ]

    def test_a_verdict_that_spends_error_is_on_the_branch_before_its_release(
        self, worker: Worker, remote: Path
    ) -> None:
        """A branch that takes no commits answers only a real push."""
        artifacts = judged(worker, "test_rows")
        evaluated = {stage: outcome for stage, outcome in RAN.items() if stage != "publish"}
        hook(remote, "pre-receive", "echo no >&2; exit 1")
        with pytest.raises(RemoteRefusedError, match="refused the commit"):
            record.ensure_recordable_before_publish(artifacts, TO, evaluated, log)
        (remote / "hooks/pre-receive").unlink()
        record.ensure_recordable_before_publish(artifacts, TO, evaluated, log)
        assert (
            recorded(remote, "runs/a/release/log.jsonl") == (worker.root / artifacts.release_events).read_text().strip()
        )
        record.record_run_on_branch(artifacts, TO, log, RAN)
        assert len(commits(remote)) == 2, "nothing is new"

    @pytest.mark.parametrize("over", ["release", "test_rows"])
    def test_nothing_is_published_while_the_share_of_the_dvc_remote_is_not_mounted(
        self, worker: Worker, tmp_path: Path, over: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stages = [f"  {stage}: {{foreach: [a], do: {{cmd: x}}}}" for stage in STAGES]
        worker.write("dvc.yaml", "\n".join(["stages:", *stages]))
        config = f"[core]\nremote = storage\n['remote \"storage\"']\nurl = {tmp_path / 'share'}\n"
        worker.write(".dvc/config", config)
        monkeypatch.setattr(record, "_WAITS_S", ())
        monkeypatch.setitem(record.record_run_on_branch.__kwdefaults__, "waits_s", ())
        artifacts = judged(worker, over)
        evaluated = {stage: outcome for stage, outcome in RAN.items() if stage != "publish"}
        (tmp_path / "share").mkdir()
        with pytest.raises(TransientError, match="share is empty: a share may not be mounted there"):
            record.ensure_recordable_before_publish(artifacts, TO, evaluated, log)
        (tmp_path / "share/files/md5").mkdir(parents=True)
        record.ensure_recordable_before_publish(artifacts, TO, evaluated, log)

    def test_a_kept_champion_asks_for_nothing(self, worker: Worker, remote: Path) -> None:
        artifacts = worker.ran("a", 1, status="kept")
        git(worker.root, "remote", "set-url", "--push", "origin", str(remote.parent / "nowhere"))
        record.ensure_recordable_before_publish(artifacts, TO, RAN, log)

    def test_objects_come_first(self, worker: Worker, remote: Path) -> None:
        """A commit names no object that the DVC remote lacks: here the remote cannot be used."""
        outs = {stage: stage for stage in STAGES} | {"train": "model"}
        stages = [
            f"  {stage}: {{foreach: [a], do: {{cmd: x, outs: ['runs/${{item}}/{out}']}}}}"
            for stage, out in outs.items()
        ]
        worker.write("dvc.yaml", "\n".join(["stages:", *stages]))
        worker.write(".dvc/config", "[core]\nremote = storage\n['remote \"storage\"']\nurl = s3://bucket\n")
        artifacts = worker.ran("a", 1)
        append_run(artifacts, entry(1))
        for _ in range(2):
            with pytest.raises(RemoteRefusedError, match="dvc push: the DVC remote `storage`: cannot be used"):
                record.record_run_on_branch(artifacts, TO, log, RAN)
        assert commits(remote) == ["Record a: published release-1", "the project"]
        assert git(remote, "show", "--name-only", "--format=", "main").splitlines() == list(map(str, artifacts.logs))

    def test_a_log_that_git_cannot_read_is_not_replaced(self, worker: Worker, remote: Path) -> None:
        """As in a clone that asks for the content of a file when it reads it, while the remote is away."""
        artifacts = worker.ran("a", 1)
        append_run(artifacts, entry(1))
        record.record_run_on_branch(artifacts, TO, log, RAN)
        before = recorded(remote, "runs/a/runs.jsonl")
        blob = git(remote, "rev-parse", "main:runs/a/runs.jsonl")
        (worker.root / ".git/objects" / blob[:2] / blob[2:]).unlink()
        append_run(worker.ran("a", 2), entry(2))
        with pytest.raises(TransientError, match="cannot read the branch"):
            record.record_run_on_branch(artifacts, TO, log, RAN, waits_s=())
        assert recorded(remote, "runs/a/runs.jsonl") == before

    def test_no_repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(RemoteRefusedError, match="not a git repository"):
            record.record_run_on_branch(Artifacts("a"), TO, log, {}, error=DataError("a", "b", "c"))


class TestRecording:
    def test_a_failed_run_is_recorded_and_keeps_its_error(self, worker: Worker, remote: Path) -> None:
        artifacts = worker.ran("a", 1)
        error = DataError("validate@a: rows.csv:3", "a row that is private", "fix it")
        with (
            pytest.raises(DataError, match="a row that is private"),
            record_run_after_block(artifacts, TO, {"ingest": "ran"}, log),
        ):
            raise error
        message = git(remote, "log", "-1", "--format=%B", "main")
        assert message.startswith("Record a: validate failed: DataError\n\nran: ingest\n")
        assert "private" not in message

    def test_a_refused_model_is_no_failure_of_publishing(self, worker: Worker, remote: Path) -> None:
        artifacts = worker.ran("a", 1, status="refused")
        with (
            pytest.raises(ModelError),
            record_run_after_block(artifacts, TO, {s: "ran" for s in RAN if s != "publish"}, log),
        ):
            raise ModelError("publish@a: blessing.json", "the gate refuses the model", "learn")
        message = git(remote, "log", "-1", "--format=%B", "main")
        assert message.startswith("Record a: the gate refused the model\n\nverdict: refuse\n- loss is")

    def test_that_it_cannot_be_recorded_does_not_hide_why_a_run_failed(self, worker: Worker, caplog) -> None:
        artifacts = worker.ran("a", 1)
        with pytest.raises(DataError), record_run_after_block(artifacts, RecordTarget(remote="backup"), {}, log):
            raise DataError("a", "b", "c")
        assert "the run was not recorded: backup/main: cannot read" in caplog.text

    def test_a_run_that_is_stopped_is_recorded(self, worker: Worker, remote: Path) -> None:
        artifacts = worker.ran("a", 1)
        with pytest.raises(KeyboardInterrupt), record_run_after_block(artifacts, TO, {"ingest": "ran"}, log):
            raise KeyboardInterrupt
        assert commits(remote)[0] == "Record a: validate was stopped"

    def test_a_good_run_that_cannot_be_recorded_fails(self, worker: Worker) -> None:
        artifacts = worker.ran("a", 1)
        with (
            pytest.raises(UnrecordedRunError) as failed,
            record_run_after_block(artifacts, RecordTarget(remote="backup"), RAN, log),
        ):
            pass
        assert isinstance(failed.value.cause, RemoteRefusedError)
        assert failed.value.cause.what.endswith("the run itself: published release-1, which is not recorded")

    def test_an_error_of_the_disk_does_not_hide_a_publication(
        self, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(record._Recorder, "keep_logs", fail)
        with (
            pytest.raises(UnrecordedRunError, match="published release-1, which is not recorded"),
            record_run_after_block(worker.ran("a", 1), TO, RAN, log),
        ):
            pass

    def test_nothing_is_recorded_unless_asked_for(self, worker: Worker, remote: Path) -> None:
        with record_run_after_block(worker.ran("a", 1), None, RAN, log):
            pass
        assert commits(remote) == ["the project"]


@pytest.mark.parametrize(
    ("status", "outcomes", "subject"),
    [
        ("published", RAN, "Record a: published release-5"),
        ("kept", RAN, "Record a: kept the champion release-5"),
        ("kept", {"evaluate": "ran"}, "Record a: evaluated, verdict keep"),
    ],
)
def test_the_first_line_says_how_the_run_ended(
    worker: Worker, status: str, outcomes: dict[str, str], subject: str
) -> None:
    message = record.compose_commit_message(worker.ran("a", 5, status=status), outcomes, None)
    assert message.splitlines()[0] == subject


def test_parse_takes_a_remote_and_a_branch() -> None:
    assert RecordTarget.parse("origin/main") == TO
    assert RecordTarget.parse("team/models/nightly") == RecordTarget(remote="team", branch="models/nightly")
    for text in ("main", "origin/", "/main", "--upload-pack=x/main", "https://host/x", "origin/-x", "ext::sh/main"):
        with pytest.raises(RecipeError, match="write remote/branch, such as origin/main"):
            RecordTarget.parse(text)


@pytest.mark.parametrize(
    "address",
    [
        "https://git.example.org/team/models.git",
        "https://git.example.org/team/models",
        "https://anna:secret@git.example.org/team/models.git/",
        "https://git.example.org:8443/scm/team/models.git",
        "http://mirror.example.net/team/models.git",
        "ssh://git@git.example.org/team/models.git",
        "ssh://git@git.example.org:2222/srv/git/team/models.git",
        "git@git.example.org:team/models.git",
        "git.example.org:/srv/git/team/models",
        "git://git.example.org/./team//models.git",
        "https://git.example.org/team%2Fmodels.git",
    ],
)
def test_what_was_kept_is_found_by_every_address_of_the_repository(address: str) -> None:
    assert repository_of_address(address) == "team/models"
    assert repository_of_address(address.replace("models", "other")) == "team/other"


def test_what_was_kept_is_found_by_every_address_of_a_repository_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    written = (
        f"{tmp_path}/r.git",
        f"file://{tmp_path}/r.git",
        f"{tmp_path}/r",
        f"{tmp_path}/./r.git",
        f"{tmp_path}/r/.git",
    )
    assert {repository_of_address(one) for one in (*written, f"{tmp_path}/link/r.git")} == {f"{tmp_path}/r"}
    assert repository_of_address(f"{tmp_path}/other/r.git") != f"{tmp_path}/r"


def test_what_an_earlier_version_has_kept_is_taken_over(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.write(".dvc/config.local", f"[cache]\ndir = {tmp_path / 'cache'}\n")
    branch = TO.git_branch(Artifacts("a"))
    project = branch.address(), branch.folder, branch.name
    earlier = tmp_path / "cache/evergreen" / hashlib.sha256("\0".join(project).encode()).hexdigest()[:16]
    (earlier / "a").mkdir(parents=True)
    with keep_outside_of_clone(Artifacts("a"), TO):
        assert (Path(os.environ[KEPT_FOLDER]) / "a").is_dir()
        assert not earlier.exists()

"""What `evergreen clean` shows and deletes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows import dvc_cache
from flows.clean import clean
from params import TransientError
from params.artifacts import Artifacts
from tasks.training.run_folders import note_start
from tests.support import tiny
from tests.support.project import ROOT
from trainer.runtime.lifetime import exclusive

OLD, NEW = "a" * 16, "0" * 16


@pytest.fixture
def artifacts(tmp_path, monkeypatch) -> Artifacts:
    """A recipe with a superseded run and a newer one that has a damaged checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe())
    artifacts = Artifacts("tiny")
    for run in (OLD, NEW):
        (artifacts.checkpoints / run / "checkpoint-2").mkdir(parents=True)
        (artifacts.checkpoints / run / "checkpoint-2/model.safetensors").write_bytes(b"x" * 3000)
        (artifacts.checkpoints / run / "broken-checkpoint-4").mkdir()
        note_start(artifacts, run)
    return artifacts


def left(artifacts: Artifacts) -> list[str]:
    return sorted(
        path.relative_to(artifacts.checkpoints).as_posix() for path in artifacts.checkpoints.glob("*/*checkpoint-*")
    )


KEPT = [f"{NEW}/checkpoint-2"]


def test_superseded_run_is_shown_with_its_size_and_deleted(artifacts, capsys):
    clean(releases=1, unfinished=False, yes=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["2.9", "KiB", f".scratch/tiny/checkpoints/{OLD}:", "superseded", "run"]
    assert lines[1].endswith("broken-checkpoint-4: damaged checkpoint")
    assert lines[2:] == ["Deleted 2.9 KiB."]
    assert left(artifacts) == KEPT
    clean(releases=1, unfinished=False, yes=True)
    assert capsys.readouterr().out == "There is nothing to delete.\n"


def test_newest_run_is_deleted_on_request_only(artifacts):
    clean(releases=1, unfinished=True, yes=True)
    assert left(artifacts) == []


@pytest.mark.parametrize("answer", [True, False, None])
def test_it_asks_first(artifacts, monkeypatch, capsys, answer):
    before = left(artifacts)
    monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question: (print(question), answer)[1])
    clean(releases=1, unfinished=False, yes=False)
    assert left(artifacts) == (KEPT if answer else before)
    said = capsys.readouterr().out
    assert ("Delete 2.9 KiB?" in said) == (answer is not None)
    assert ("add --yes" in said) == (answer is None)


@pytest.mark.parametrize("lock", ["flow_lock", "train_lock", "mirror_lock", "verify_resume_lock"])
def test_nothing_is_deleted_while_a_command_of_a_recipe_runs(artifacts, lock):
    before = left(artifacts)
    with (
        exclusive(getattr(artifacts, lock), "a test"),
        pytest.raises(TransientError, match="a command of tiny is already"),
    ):
        clean(releases=1, unfinished=False, yes=True)
    assert left(artifacts) == before


def test_nothing_is_deleted_while_dvc_runs_a_stage(artifacts, monkeypatch):
    before = left(artifacts)
    me = {"pid": os.getpid(), "cmd": " ".join(["x", *psutil.Process().cmdline()[1:]])}
    owners = Path(".dvc/tmp/rwlock")
    owners.parent.mkdir(parents=True)
    (owners.parents[1] / "config").write_text("[core]\n    no_scm = true\n")
    monkeypatch.setattr("flows.clean.recorded_data", lambda *_, **__: set())
    owners.write_text(json.dumps({"write": {}, "read": {"runs/tiny/raw": [me]}}))
    with pytest.raises(TransientError, match="DVC runs a stage"):
        clean(releases=1, unfinished=False, yes=True)
    assert left(artifacts) == before


def test_cache_is_left_alone_if_a_hub_does_not_answer(artifacts, monkeypatch, capsys):
    def unreachable(*_, **__):
        raise TransientError("http://hub", "no clear answer", "try again later")

    Path(".dvc").mkdir()
    monkeypatch.setattr("flows.clean.recorded_data", unreachable)
    monkeypatch.setattr("flows.dvc_cache.unused", lambda *_, **__: pytest.fail("the cache was touched"))
    clean(releases=1, unfinished=False, yes=True)
    assert "unknown what releases need: http://hub: no clear answer" in capsys.readouterr().out
    assert left(artifacts) == KEPT


@pytest.fixture
def versions(tmp_path, monkeypatch) -> dict[str, str]:
    """A DVC project whose cache has these folders, by their DVC hashes: of main, of a branch, of a tag, of the workspace, lost."""
    monkeypatch.chdir(tmp_path)
    for name in ("NAME", "EMAIL"):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", "t@example.org")
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", "t@example.org")
    run("git", "init", "-q", "-b", "main")
    run(sys.executable, "-m", "dvc", "init", "-q")
    found = {}
    for version in ("released", "lost", "branch", "tag", "main", "workspace"):
        shutil.rmtree("data", ignore_errors=True)
        Path("data").mkdir()
        Path("data/rows").write_text(f"{version}\n" * 1000)
        Path("data/same").write_text("same")
        run(sys.executable, "-m", "dvc", "add", "-q", "data")
        found[version] = Path("data.dvc").read_text().split("md5: ")[1].split()[0]
        if version in ("branch", "tag", "main"):
            run("git", "add", "-A")
            run("git", "commit", "-qm", version)
            if version != "main":
                run("git", version, version)
    return found


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"DVC_NO_ANALYTICS": "1"})


def cached(md5: str) -> bool:
    """Whether DVC's cache has a folder with all of its files."""
    objects = Path(".dvc/cache/files/md5")
    folder = objects / md5[:2] / md5[2:]
    files = json.loads(folder.read_text()) if folder.exists() else []
    return bool(files) and all((objects / file["md5"][:2] / file["md5"][2:]).exists() for file in files)


def test_dvc_cache_keeps_workspace_branches_tags_and_releases(versions):
    lost = versions.pop("lost")
    needed = {versions["released"], "0" * 32, f"{'0' * 32}.dir"}
    size = dvc_cache.unused(needed)
    assert 5000 < size < 6000, "1,000 lines and the list of the folder's files"
    assert cached(lost)
    assert dvc_cache.unused(needed, remove=True) == size
    assert not cached(lost)
    assert all(map(cached, versions.values()))
    assert dvc_cache.unused(needed, remove=True) == 0
    assert dvc_cache.unused(set(), remove=True) > 0
    assert not cached(versions["released"])
    run("git", "checkout", "-qf", "branch")
    run(sys.executable, "-m", "dvc", "checkout", "-q", "--force")
    assert Path("data/rows").read_text().startswith("branch\n")


def test_stages_that_no_branch_has_run_give_no_warnings(versions, capfd):
    Path("dvc.yaml").write_text("stages: {one: {cmd: echo 1 > one, outs: [one]}}\n")
    run("git", "add", "dvc.yaml")
    run("git", "commit", "-qm", "a stage")
    code = "from flows import dvc_cache; dvc_cache.unused(set())"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert "missing version info" not in "".join(capfd.readouterr())


def test_dvc_cache_without_git(versions):
    shutil.rmtree(".git")
    Path(".dvc/config").write_text("[core]\n    no_scm = true\n")
    assert dvc_cache.unused({versions["released"]}, remove=True) > 0
    kept = {name for name, md5 in versions.items() if cached(md5)}
    assert kept == {"released", "workspace"}

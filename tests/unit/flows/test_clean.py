"""What `evergreen clean` shows and deletes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import psutil
import pytest

from flows.clean import delete_unneeded_if_confirmed
from flows.dvc_project import cache as dvc_cache
from params import TransientError
from params.foundation.artifacts import Artifacts
from params.foundation.file_lock import hold_file_lock
from tasks.release_log.events import ReleaseEvent
from tasks.training.run_folders import mark_runs_as_last_started
from tests.support import forked, tiny
from tests.support.project import ROOT

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
        mark_runs_as_last_started(artifacts, [run])
    return artifacts


def left(artifacts: Artifacts) -> list[str]:
    return sorted(
        path.relative_to(artifacts.checkpoints).as_posix() for path in artifacts.checkpoints.glob("*/*checkpoint-*")
    )


KEPT = [f"{NEW}/checkpoint-2"]


def test_superseded_run_is_shown_with_its_size_and_deleted(artifacts, capsys):
    delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["2.9", "KiB", f".scratch/tiny/checkpoints/{OLD}:", "superseded", "run"]
    assert lines[1].endswith("broken-checkpoint-4: damaged checkpoint")
    assert lines[2:] == [f"Deleted 2.9 KiB in {Path('.scratch').absolute()}."]
    assert left(artifacts) == KEPT
    delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True)
    assert capsys.readouterr().out == "There is nothing to delete.\n"


def test_newest_run_is_deleted_on_request_only(artifacts):
    delete_unneeded_if_confirmed(releases=1, unfinished=True, yes=True)
    assert left(artifacts) == []


@pytest.mark.parametrize("answer", [True, False, None])
def test_it_asks_first(artifacts, monkeypatch, capsys, answer):
    before = left(artifacts)
    monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question: (print(question), answer)[1])
    delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=False)
    assert left(artifacts) == (KEPT if answer else before)
    said = capsys.readouterr().out
    assert ("Delete 2.9 KiB in " in said) == (answer is not None)
    assert ("add --yes" in said) == (answer is None)


@pytest.mark.parametrize("lock", ["flow_lock", "train_lock", "mirror_lock", "verify_resume_lock"])
def test_nothing_is_deleted_while_a_command_of_a_recipe_runs(artifacts, lock):
    before = left(artifacts)
    with (
        hold_file_lock(getattr(artifacts, lock), "a test"),
        pytest.raises(TransientError, match="a command of tiny is already"),
    ):
        delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True)
    assert left(artifacts) == before


def test_nothing_is_deleted_while_dvc_runs_a_stage(artifacts, monkeypatch):
    before = left(artifacts)
    me = {"pid": os.getpid(), "cmd": " ".join(["x", *psutil.Process().cmdline()[1:]])}
    owners = Path(".dvc/tmp/rwlock")
    owners.parent.mkdir(parents=True)
    (owners.parents[1] / "config").write_text("[core]\n    no_scm = true\n")
    monkeypatch.setattr("flows.clean.fetch_release_data_hashes", lambda *_, **__: set())
    owners.write_text(json.dumps({"write": {}, "read": {"runs/tiny/raw": [me]}}))
    with pytest.raises(TransientError, match="DVC runs a stage"):
        delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True)
    assert left(artifacts) == before


def test_cache_is_left_alone_if_a_hub_does_not_answer(artifacts, monkeypatch, capsys):
    def unreachable(*_, **__):
        raise TransientError("http://hub", "no clear answer", "try again later")

    Path(".dvc").mkdir()
    monkeypatch.setattr("flows.clean.fetch_release_data_hashes", unreachable)
    monkeypatch.setattr("flows.dvc_project.cache.cache_folder_and_sharing", lambda: (Path(".dvc/cache"), None))
    monkeypatch.setattr(
        "flows.dvc_project.cache.measure_or_delete_unused_objects",
        lambda *_, **__: pytest.fail("the cache was touched"),
    )
    delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True)
    assert "unknown what releases need: http://hub: no clear answer" in capsys.readouterr().out
    assert left(artifacts) == KEPT


@pytest.fixture(scope="module")
def made_once(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """See `versions`."""
    root, found = tmp_path_factory.mktemp("versions"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        _identify(patch)
        run("git", "init", "-q", "-b", "main")
        dvc("init", "-q")
        for version in ("released", "lost", "branch", "tag", "main", "workspace"):
            found[version] = add(version)
            if version in ("branch", "tag", "main"):
                run("git", "add", "-A")
                run("git", "commit", "-qm", version)
                if version != "main":
                    run("git", version, version)
    return root, found


@pytest.fixture
def versions(made_once, tmp_path, monkeypatch) -> dict[str, str]:
    """A DVC project whose cache has these folders, by their DVC hashes: of main, of a branch, of a tag, of the workspace, lost."""
    root, found = made_once
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    _identify(monkeypatch)
    return dict(found)


def _identify(patch) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        patch.setenv(f"GIT_{name}_NAME", "t")
        patch.setenv(f"GIT_{name}_EMAIL", "t@example.org")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"DVC_NO_ANALYTICS": "1"})


def dvc(*command: str) -> None:
    """Run a command of DVC in this process, which is ten times as fast."""
    from dvc.cli import main

    with warnings.catch_warnings(action="ignore"):
        assert main([*command, "-q"] if "-q" not in command else list(command)) == 0


def cached(md5: str, cache: Path = Path(".dvc/cache")) -> bool:
    """Whether DVC's cache has a folder with all of its files."""
    objects = cache / "files/md5"
    folder = objects / md5[:2] / md5[2:]
    files = json.loads(folder.read_text()) if folder.exists() else []
    return bool(files) and all((objects / file["md5"][:2] / file["md5"][2:]).exists() for file in files)


def test_dvc_cache_keeps_workspace_branches_tags_and_releases(versions):
    lost = versions.pop("lost")
    needed = {versions["released"], "0" * 32, f"{'0' * 32}.dir"}
    size = dvc_cache.measure_or_delete_unused_objects(needed)
    assert 5000 < size < 6000, "1,000 lines and the list of the folder's files"
    assert cached(lost)
    assert dvc_cache.measure_or_delete_unused_objects(needed, remove=True) == size
    assert not cached(lost)
    assert all(map(cached, versions.values()))
    assert dvc_cache.measure_or_delete_unused_objects(needed, remove=True) == 0
    assert dvc_cache.measure_or_delete_unused_objects(set(), remove=True) > 0
    assert not cached(versions["released"])
    run("git", "checkout", "-qf", "branch")
    dvc("checkout", "-q", "--force")
    assert Path("data/rows").read_text().startswith("branch\n")


def add(version: str) -> str:
    """Put a folder of this version under DVC, and return its hash."""
    shutil.rmtree("data", ignore_errors=True)
    Path("data").mkdir()
    Path("data/rows").write_text(f"{version}\n" * 1000)
    Path("data/same").write_text("same")
    dvc("add", "-q", "data")
    return Path("data.dvc").read_text().split("md5: ")[1].split()[0]


def restore() -> None:
    run("git", "reset", "-q", "--hard")
    dvc("checkout", "-q", "--force")


def test_dvc_cache_keeps_what_is_saved_anywhere_in_the_repository(versions, tmp_path_factory):
    """Experiments, queued ones, stashes, the record of a run on a branch of a remote, other worktrees, removed recipes."""
    lost, kept = versions["lost"], {}
    restore()
    for name in ("first stash", "second stash"):
        kept[name] = add(name)
        run("git", "stash", "-q")
    restore()
    kept["recorded"] = add("recorded")
    run("git", "stash", "-q")
    run("git", "update-ref", "refs/evergreen/tiny/origin/recorded/main", "stash@{0}")
    run("git", "stash", "drop", "-q")
    restore()
    kept["experiment"] = add("experiment")
    dvc("exp", "save", "-q", "-n", "saved")
    restore()
    kept["staged"] = add("staged")
    run("git", "add", "data.dvc")
    staged = Path("data.dvc").read_bytes()
    run("git", "worktree", "add", "-q", "--detach", str(elsewhere := tmp_path_factory.mktemp("other") / "worktree"))
    kept["other worktree"] = add("other worktree")
    shutil.copy("data.dvc", elsewhere / "data.dvc")
    kept["a queued experiment's folder"] = add("queued")
    queued = Path(".dvc/tmp/exps/tmp123/data.dvc")
    queued.parent.mkdir(parents=True)
    shutil.copy("data.dvc", queued)
    kept["recipe without an item in recipes.yaml"] = add("removed")
    Path("data.dvc").rename("removed.txt")
    entry = (
        f"stages: {{ingest@gone: {{outs: [{{path: data, md5: {kept['recipe without an item in recipes.yaml']}}}]}}}}"
    )
    Path("dvc.lock").write_text(f"schema: '2.0'\n{entry}\n")
    Path("data.dvc").write_bytes(staged)
    assert dvc_cache.measure_or_delete_unused_objects(set(), remove=True) > 0
    assert not cached(lost)
    assert [name for name, md5 in kept.items() if not cached(md5)] == []


def test_releases_of_removed_recipes_and_of_other_branches_are_asked_for(versions, capsys, monkeypatch):
    """By the logs of receipts, the only ones that know where a recipe published that is not here."""

    def log(recipe: str, event: str, folder: str = "runs/{}/release") -> None:
        entry = ReleaseEvent(event=event, reasons=('say "event":"kept"',), repo_id=f"me/{recipe}", **about)
        path = Path(folder.format(recipe), "log.jsonl")
        path.parent.mkdir(parents=True)
        path.write_text(entry.model_dump_json() + "\n" + "{damaged\n")

    about = {"endpoint": "http://hub", "commit": None, "tag": None, "weights": "w", "row_sketch": ("0" * 16,)}
    log("elsewhere", "published")
    run("git", "add", "-A")
    run("git", "stash", "-q")
    log("removed", "proposed")
    log("unrecorded", "published", ".scratch/{}/unrecorded")
    log("tried", "dry-run")
    tiny.write(Path("params/new.yaml"), tiny.recipe({"publish.repo_id": "me/new"}))
    asked: dict[str, bool] = {}

    def hub(repo_id: str, endpoint: str, *, last: int, must_exist: bool) -> set[str]:
        asked[f"{repo_id} on {endpoint}"] = must_exist
        return {versions["lost"]}

    monkeypatch.setattr("flows.clean.fetch_release_data_hashes", hub)
    delete_unneeded_if_confirmed(releases=3, unfinished=False, yes=True)
    published = {f"me/{recipe} on http://hub": True for recipe in ("elsewhere", "removed", "unrecorded")}
    assert asked == {**published, "me/new on local": False}
    assert cached(versions["lost"])
    asked.clear()
    delete_unneeded_if_confirmed(releases=0, unfinished=False, yes=True)
    assert not cached(versions["lost"])
    assert not asked


@pytest.mark.parametrize("where", ["outside", "linked", "shared"])
def test_cache_that_others_may_use_is_named_and_left_alone(versions, tmp_path_factory, capsys, monkeypatch, where):
    monkeypatch.setattr("flows.clean.fetch_release_data_hashes", lambda *_, **__: set())
    folder = Path(".dvc/cache").absolute()
    if where == "shared":
        dvc("config", "cache.shared", "group")
    else:
        folder = tmp_path_factory.mktemp("others") / "cache"
        Path(".dvc/cache").rename(folder)
        if where == "outside":
            dvc("cache", "dir", "--local", str(folder))
        else:
            Path(".dvc/cache").symlink_to(folder)
    before = sorted(folder.rglob("*"))
    delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True)
    assert f"DVC's cache {folder} is left alone" in capsys.readouterr().out
    assert sorted(folder.rglob("*")) == before

    note = folder / "evergreen/project/tiny/unfinished-runs/run.json"
    with (
        hold_file_lock(note.with_suffix(".lock"), "a run in another clone"),
        pytest.raises(TransientError, match="a run in another clone"),
    ):
        delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True, shared_cache=True)
    assert cached(versions["lost"], folder)
    delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True, shared_cache=True)
    assert not cached(versions["lost"], folder)
    assert cached(versions["workspace"], folder)


def test_the_folder_that_is_emptied_is_named_in_the_question(versions, capsys, monkeypatch):
    monkeypatch.setattr("flows.clean.fetch_release_data_hashes", lambda *_, **__: set())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question: (print(question), False)[1])
    delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=False)
    folder = Path(".dvc/cache").absolute()
    said = capsys.readouterr().out.splitlines()
    assert [f"{folder}: objects that" in line for line in said] == [True, False]
    assert said[1].endswith(f" in {folder}?")


def test_nothing_is_deleted_while_an_experiment_runs(versions, monkeypatch):
    monkeypatch.setattr("flows.clean.fetch_release_data_hashes", lambda *_, **__: set())
    about = Path(".dvc/tmp/exps/run/abc/abc.json")
    about.parent.mkdir(parents=True)
    about.write_text(json.dumps({"pid": os.getpid(), "returncode": None}))
    with pytest.raises(TransientError, match="an experiment"):
        delete_unneeded_if_confirmed(releases=1, unfinished=False, yes=True)
    assert cached(versions["lost"])


def test_stages_that_no_branch_has_run_give_no_warnings(versions, capfd):
    Path("dvc.yaml").write_text("stages: {one: {cmd: echo 1 > one, outs: [one]}}\n")
    run("git", "add", "dvc.yaml")
    run("git", "commit", "-qm", "a stage")
    code = "from flows.dvc_project import cache as dvc_cache; dvc_cache.measure_or_delete_unused_objects(set())"
    subprocess.run([forked.python(), "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert "missing version info" not in "".join(capfd.readouterr())


def test_dvc_cache_without_git(versions):
    shutil.rmtree(".git")
    Path(".dvc/config").write_text("[core]\n    no_scm = true\n")
    assert dvc_cache.measure_or_delete_unused_objects({versions["released"]}, remove=True) > 0
    kept = {name for name, md5 in versions.items() if cached(md5)}
    assert kept == {"released", "workspace"}

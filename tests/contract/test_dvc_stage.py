"""What the flow relies on in DVC, shown with the real one: its exceptions, and the one number in a message."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.dvc_project import stage as dvc_stage
from params import DataError, EvergreenError, RecipeError, StorageError, TransientError
from params.foundation import command_result
from params.foundation.command_result import CommandResult
from tests.support import forked
from tests.support.project import ROOT

DVC_YAML = """\
stages:
  good: {cmd: cp source good && echo ran >> runs.log, deps: [source], outs: [good]}
  refuses: {cmd: exit 65, deps: [source], outs: [refused]}
  dies: {cmd: exec sh -c 'kill -9 $$', deps: [source], outs: [died]}
  forgets: {cmd: "true", deps: [source], outs: [forgotten]}
  reports: {cmd: exec python fails.py, deps: [source], outs: [reported]}
  large: {cmd: ulimit -S -f unlimited && head -c 4000000 /dev/zero > large, deps: [source], outs: [large]}
  needs: {cmd: "true", deps: [absent], outs: [needed]}
"""
FAILS = """\
import sys
from params import DataError
from params.foundation import command_result
try:
    with command_result.report_result_on_exit():
        raise DataError("rows.csv:3", "is empty", "fill it", key="data.source.train")
except DataError as error:
    sys.exit(error.exit_code)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dvc")
    for name, text in {"dvc.yaml": DVC_YAML, "source": "1", "fails.py": FAILS}.items():
        (root / name).write_text(text, encoding="utf-8")
    subprocess.run([forked.python(), "-m", "dvc", "init", "--no-scm", "-q"], cwd=root, check=True)
    return root


@pytest.fixture(autouse=True)
def _inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(logging.getLogger("dvc"), "level", logging.WARNING)


def run(name: str, *options: str, preexec: Callable[[], None] | None = None) -> tuple[int, CommandResult | None]:
    """The exit status of a run of the stage `name`, and what was reported."""
    environment = {**os.environ, **command_result.preallocate_result_file(Path("result.json"))}
    done = subprocess.run(
        ["python", "-m", "flows.dvc_project.stage", name, *options],
        env=forked.commands(environment),
        capture_output=True,
        text=True,
        preexec_fn=preexec,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, command_result.read_result_file(Path("result.json"))


def runs(project: Path) -> int:
    """How often the command of the stage `good` has run."""
    return len((project / "runs.log").read_text(encoding="utf-8").splitlines())


def test_stage_is_stale_before_its_run_and_after_a_change(project: Path) -> None:
    assert dvc_stage.is_any_stage_stale("good")
    assert run("good") == (0, None)
    assert not dvc_stage.is_any_stage_stale("good")
    (project / "source").write_text("2", encoding="utf-8")
    assert dvc_stage.is_any_stage_stale("good")
    assert run("good") == (0, None)
    assert (project / "good").read_text(encoding="utf-8") == "2"
    (project / "source").write_text("1", encoding="utf-8")
    (project / "good").unlink()
    count = runs(project)
    assert run("good") == (0, None)
    assert (project / "good").read_text(encoding="utf-8") == "1"
    assert runs(project) == count, "DVC restores the outputs of the same work without running the command"


def test_force_runs_a_fresh_stage(project: Path) -> None:
    run("good")
    before = runs(project)
    assert run("good") == (0, None)
    assert runs(project) == before
    assert run("good", "--force") == (0, None)
    assert runs(project) == before + 1


@pytest.mark.parametrize(("name", "status"), [("refuses", 65), ("dies", 128 + 9)])
def test_exit_status_of_a_command_is_returned(name: str, status: int) -> None:
    assert run(name) == (status, None)


def test_error_of_a_command_is_returned_whole() -> None:
    status, result = run("reports")
    assert status == DataError.exit_code
    assert result is not None
    assert type(result.error) is DataError
    assert vars(result.error) == vars(DataError("rows.csv:3", "is empty", "fill it", key="data.source.train"))


def test_missing_output_is_an_error() -> None:
    status, result = run("forgets")
    assert status == EvergreenError.exit_code
    assert result is not None
    assert type(result.error) is EvergreenError
    assert "forgotten" in result.error.what


@pytest.fixture
def busy(project: Path) -> int:
    """Another process that DVC takes for a writer of the stage's output: its id."""
    lock = project / ".dvc" / "tmp" / "rwlock"
    owner = {"pid": os.getpid(), "cmd": "dvc repro elsewhere"}
    lock.write_text(json.dumps({"write": {str(project / "good"): owner}, "read": {}}), encoding="utf-8")
    yield os.getpid()
    lock.unlink()


def test_busy_stage_is_a_transient_error_that_names_the_owner(busy: int) -> None:
    status, result = run("good", "--force")
    assert status == TransientError.exit_code
    assert result is not None
    assert type(result.error) is TransientError
    assert f"(PID {busy}): dvc repro elsewhere" in result.error.what
    with pytest.raises(TransientError, match=rf"good: another process uses its artifacts: .*\(PID {busy}\)"):
        dvc_stage.is_any_stage_stale("good")


def test_full_disk_under_the_cache_is_a_storage_error(project: Path) -> None:
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, resource.RLIM_INFINITY))

    status, result = run("large", preexec=no_large_files)
    assert status == StorageError.exit_code
    assert result is not None
    assert type(result.error) is StorageError
    assert "File too large" in result.error.what
    assert "MiB free" in result.error.what
    assert dvc_stage.is_any_stage_stale("large")
    assert run("large") == (0, None)


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # DVC's
@pytest.mark.parametrize(("free", "kind"), [(0, StorageError), (2**30, EvergreenError)])
def test_lock_file_that_a_full_disk_has_cut_short_is_a_storage_error(
    project: Path, monkeypatch: pytest.MonkeyPatch, free: int, kind: type[EvergreenError]
) -> None:
    rwlock = project / ".dvc/tmp/rwlock"
    rwlock.write_text('{"read": {', encoding="utf-8")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    try:
        with pytest.raises(kind) as caught, dvc_stage.open_dvc_repository("good") as repo:
            repo.reproduce("good", force=True)
        assert type(caught.value) is kind
    finally:
        rwlock.unlink()


def test_missing_dependency_is_named() -> None:
    status, result = run("needs")
    assert status == DataError.exit_code
    assert result is not None
    assert type(result.error) is DataError
    assert result.error.where.endswith("/absent")


@pytest.mark.parametrize("content", ["stages: [", "schema: '2.0'\nstages: {good: 3}\n"], ids=["cut short", "not DVC's"])
def test_damaged_dvc_lock_is_named(project: Path, content: str) -> None:
    run("good")
    lock = project / "dvc.lock"
    text = lock.read_text(encoding="utf-8")
    lock.write_text(content, encoding="utf-8")
    try:
        status, result = run("good")
        assert status == RecipeError.exit_code
        assert result is not None
        assert type(result.error) is RecipeError
        assert result.error.where == "dvc.lock"
        assert "git checkout dvc.lock" in result.error.fix
        with pytest.raises(RecipeError, match=r"^dvc\.lock: "):
            dvc_stage.is_any_stage_stale("good")
    finally:
        lock.write_text(text, encoding="utf-8")


def test_unknown_stage_is_named() -> None:
    with pytest.raises(RecipeError, match="there is no stage train@none"):
        dvc_stage.is_any_stage_stale("train@none")


def test_invalid_dvc_yaml_is_named(project: Path) -> None:
    text = (project / "dvc.yaml").read_text(encoding="utf-8")
    (project / "dvc.yaml").write_text("stages: [", encoding="utf-8")
    try:
        with pytest.raises(RecipeError, match=r"dvc.yaml: good: .*\n  fix: fix dvc.yaml"):
            dvc_stage.is_any_stage_stale("good")
    finally:
        (project / "dvc.yaml").write_text(text, encoding="utf-8")


def test_wrong_list_of_recipes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is an item of an earlier version of the project."""
    monkeypatch.chdir(tmp_path)
    subprocess.run([forked.python(), "-m", "dvc", "init", "--no-scm", "-q"], check=True)
    stage = {"foreach": "${recipes}", "do": {"cmd": "true", "deps": ["${item.data}", "${item.base}"]}}
    content = {"vars": ["recipes.yaml"], "stages": {"train": stage}}
    Path("dvc.yaml").write_text(json.dumps(content), encoding="utf-8")
    for text, error in {
        "recipes: {default: {data: rows}}": "the item of a recipe has no `base`",
        "recipes: {": "train@default: unable to read: 'recipes.yaml'",
        "recipes:": "train@default: failed to resolve 'stages.train.foreach'",
        "": "train@default: ",
        None: "'recipes.yaml' does not exist",
    }.items():
        if text is None:
            Path("recipes.yaml").unlink()
        else:
            Path("recipes.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(RecipeError, match=rf"^recipes\.yaml: .*{re.escape(error)}"):
            dvc_stage.is_any_stage_stale("train@default")

"""Inputs of a stage that are missing, or that somebody has edited, with the real DVC."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.dvc_project import stage as dvc_stage
from params import DataError
from params.foundation import command_result
from tests.support.project import ROOT

# pygtrie 2.5.0, which DVC asks whether a path lies in the output of another stage
pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value will soon raise:DeprecationWarning")
DVC_YAML = """\
stages:
  make: {cmd: mkdir made && cp source made/rows, deps: [source], outs: [made]}
  use: {cmd: cp made/rows used, deps: [made/rows], outs: [used]}
  sum: {cmd: cat used made/rows > sum, deps: [used, made/rows], outs: [sum]}
"""


def dvc(*arguments: str) -> None:
    """Run a command of DVC in this process, which starts no other that would import it."""
    from dvc.cli import main

    assert main([*arguments, "-q"]) == 0


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose stages have run, and which has no remote. The working directory."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("dvc.yaml").write_text(DVC_YAML)
    Path("source").write_text("one")
    dvc("init", "--no-scm")
    dvc("add", "source")
    dvc("repro")


def test_without_a_remote_what_is_not_here_is_brought_from_the_cache() -> None:
    shutil.rmtree("made")
    Path("used").write_text("mine")
    dvc_stage.restore_inputs("sum")
    assert [Path(name).read_text() for name in ("used", "made/rows")] == ["mine", "one"]
    shutil.rmtree("made")
    shutil.rmtree(".dvc/cache")
    dvc_stage.restore_inputs("sum")
    assert not Path("made").exists()


def test_an_edit_of_an_added_file_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other versions that DVC has are."""
    dvc("remote", "add", "-d", "storage", "../storage")
    dvc("push")
    Path("source").write_text("edited")
    variable = command_result.preallocate_result_file(Path("result.json"))
    monkeypatch.setenv(*next(iter(variable.items())))
    assert dvc_stage.main("make") == DataError.exit_code
    result = command_result.read_result_file(Path("result.json"))
    assert result
    assert "source: has changes that DVC does not have" in str(result.error)
    assert Path("source").read_text() == "edited"
    dvc("add", "source")
    assert dvc_stage.main("make") == 0
    assert Path("made/rows").read_text() == "edited"
    shutil.rmtree(".dvc/cache/files")
    dvc("add", "source")
    Path("source").write_text("one")  # which only the remote has
    assert dvc_stage.main("make", "--force") == 0
    assert Path("source").read_text() == "edited"


@pytest.fixture
def stranger() -> None:
    """A stage reads a file of a folder that came with a dvc.yaml, and a dvc.lock that records another version of the file."""
    Path("data").mkdir()
    Path("data/dvc.yaml").write_text("stages:\n  x: {cmd: touch ran && echo theirs > rows, outs: [rows]}\n")
    dvc("repro", "data/dvc.yaml")
    Path("data/ran").unlink()
    Path("data/rows").unlink()
    Path("data/rows").write_text("rows")
    shutil.rmtree(".dvc/cache")
    Path("dvc.yaml").write_text("stages:\n  look: {cmd: cp data/rows look, deps: [data/rows], outs: [look]}\n")


def test_commands_that_came_with_data_are_not_run_to_restore_a_file(stranger: None) -> None:
    Path("../storage/files/md5").mkdir(parents=True)
    dvc("remote", "add", "-d", "storage", "../storage")
    assert dvc_stage.main("look") == DataError.exit_code
    assert not Path("data/ran").exists()


def test_dvc_does_not_read_what_came_with_data(stranger: None) -> None:
    """Also if that says that it is not to be ignored."""
    shutil.copy(ROOT / ".dvcignore", ".dvcignore")
    Path("data/.dvcignore").write_text("!dvc.yaml\n!/dvc.yaml\n")
    dvc("repro")
    assert Path("look").read_text() == "rows"
    assert not Path("data/ran").exists()

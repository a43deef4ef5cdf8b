"""The file in which a command reports its result to the process that started it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from params import DataError, StorageError
from params.foundation import command_result
from params.foundation.command_result import VARIABLE, CommandResult, preallocate_result_file, report_result_on_exit


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "folder" / "result.json"
    for name, value in preallocate_result_file(path).items():
        monkeypatch.setenv(name, value)
    return path


def test_command_that_writes_nothing_has_no_result(path: Path) -> None:
    assert command_result.read_result_file(path) is None


def test_successful_command_has_an_empty_result(path: Path) -> None:
    with report_result_on_exit():
        pass
    assert command_result.read_result_file(path) == CommandResult()


def test_error_keeps_its_class_and_text(path: Path) -> None:
    error = DataError("rows:3", "is bad\nvery bad: é", "fix it", key="data.source")
    with pytest.raises(DataError), report_result_on_exit():
        raise error
    result = command_result.read_result_file(path)
    assert result is not None
    assert type(result.error) is DataError
    assert vars(result.error) == vars(error)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_other_exceptions_leave_no_result(path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), report_result_on_exit():
        raise error
    assert command_result.read_result_file(path) is None


def test_reserve_erases_an_earlier_result(path: Path) -> None:
    with pytest.raises(DataError), report_result_on_exit():
        raise DataError("an earlier", "x" * 5000, "c")
    preallocate_result_file(path)
    assert command_result.read_result_file(path) is None


def test_shorter_result_replaces_a_longer_one(path: Path) -> None:
    command_result.write_result_file(path, DataError("a", "x" * 5000, "c"))
    command_result.write_result_file(path, None)
    assert command_result.read_result_file(path) == CommandResult()


def test_child_command_does_not_report_for_its_parent(path: Path) -> None:
    with report_result_on_exit():
        assert VARIABLE not in os.environ
        with pytest.raises(DataError), report_result_on_exit():
            raise DataError("of a child", "b", "c")
        assert command_result.read_result_file(path) is None


def test_long_error_fits_into_the_reserved_file(path: Path) -> None:
    size = path.stat().st_size
    command_result.write_result_file(path, DataError("a", "x" * 100_000, "c"))
    assert path.stat().st_size == size
    result = command_result.read_result_file(path)
    assert result is not None
    assert type(result.error) is DataError


def test_nothing_is_written_without_a_reserved_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with report_result_on_exit():
        pass
    assert list(tmp_path.iterdir()) == []


def test_deleted_result_file_is_not_recreated(path: Path) -> None:
    path.unlink()
    with report_result_on_exit():
        pass
    assert not path.exists()


def test_reserve_reports_a_full_disk() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(StorageError, match="cannot be written"):
        preallocate_result_file(Path("/dev/full"))


def test_the_starter_says_the_error_or_else_the_command(path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_started in (True, False):
        with pytest.raises(DataError, match=f"has one: {is_started}"), report_result_on_exit():
            raise DataError("a", f"has one: {command_result.has_starter()}", "c")
        assert ("DataError: a: has one" in capsys.readouterr().err) is not is_started
        monkeypatch.delenv(VARIABLE, raising=False)
    assert not command_result.has_starter()

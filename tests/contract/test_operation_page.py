"""docs/operation.md and its units: systemd accepts them, and every command that the page names can be given like that."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from flows.cli import app
from tests.support.project import ROOT
from tests.support.systemd import UNITS, Unit

PAGE = (ROOT / "docs" / "operation.md").read_text(encoding="utf-8")
WRITTEN = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE) + [c.replace("\n", " ") for c in re.findall(r"`([^`]+)`", PAGE)]
COMMANDS = sorted({part.strip() for line in WRITTEN for part in re.split(r"&&|\||;", line.split(" # ")[0])})
STANDS_FOR = {"<run id>": "01234567-89ab-cdef-0123-456789abcdef", "<recipe>": "default", "<number>": "3"}
"""What a placeholder is replaced by; any other one by its own words."""
POSTGRESQL = ("createdb", "createuser", "dropdb", "pg_dump", "pg_restore", "psql")


def arguments_of(command: str, program: str) -> list[str] | None:
    """The arguments of a command of `program`; None for a command of another one."""
    for placeholder, value in STANDS_FOR.items():
        command = command.replace(placeholder, value)
    words = shlex.split(re.sub(r"<([^>]+)>", lambda found: found[1].replace(" ", "-"), command))
    if words[:1] == ["sudo"]:
        words = words[1:]
        while words[:1] and words[0].startswith("-"):
            words = words[2:] if words[0] == "-u" else words[1:]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words[1:] if words[:1] == [program] else None


def commands_of(program: str) -> dict[str, list[str]]:
    """The commands of a program on the page, and their arguments; a name without any stands for the program itself."""
    found = {command: arguments_of(command, program) for command in COMMANDS if program in command}
    return {command: arguments for command, arguments in found.items() if arguments}


EVERGREEN, PREFECT, DVC = commands_of("evergreen"), commands_of("prefect"), commands_of("dvc")


def test_commands_are_found() -> None:
    assert len(EVERGREEN) > 8
    assert len(PREFECT) > 8
    assert len(DVC) > 1


@pytest.mark.parametrize("command", EVERGREEN)
def test_evergreen_takes_the_arguments(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name, *arguments = EVERGREEN[command]
    group: Any = typer.main.get_command(app)
    assert name in group.commands
    if arguments:
        group.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("command", PREFECT)
def test_prefect_takes_the_arguments(command: str) -> None:
    from prefect.cli._app import _app

    _app.parse_args([a for a in PREFECT[command] if a != "--no-prompt"], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("command", DVC)
def test_dvc_takes_the_arguments(command: str) -> None:
    from dvc.cli import parse_args

    with contextlib.redirect_stderr(io.StringIO()):
        parse_args(DVC[command])


@pytest.mark.parametrize("program", POSTGRESQL)
def test_postgresql_takes_the_options(program: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    known = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    commands = commands_of(program)
    assert commands
    for command, arguments in commands.items():
        for option in (a.partition("=")[0] for a in arguments if a.startswith("-")):
            assert re.search(rf"(^|\s){re.escape(option)}\b", known), command


@pytest.fixture(params=sorted(path.name for path in UNITS.iterdir()))
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Unit:
    """Each unit of the project in `tmp_path`."""
    prefect = tmp_path / ".venv" / "bin" / "prefect"
    prefect.parent.mkdir(parents=True)
    prefect.touch(0o755)
    return Unit(request.param, project=tmp_path, state=tmp_path)


def test_systemd_accepts_the_unit(unit: Unit, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    file = tmp_path / unit.name
    file.write_text(unit.text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # it ends with 0 when it ignores a line


def test_prefect_knows_the_settings_of_the_unit(unit: Unit) -> None:
    known = prefect_settings()
    assert {name for name in unit.environment if name.startswith("PREFECT_")} <= known


def test_prefect_knows_the_settings_on_the_page() -> None:
    named = set(re.findall(r"PREFECT_[A-Z_]+", PAGE))
    assert len(named) > 5
    assert named <= prefect_settings()


def test_units_are_linked_on_the_page(unit: Unit) -> None:
    assert f"](systemd/{unit.name})" in PAGE


def prefect_settings() -> set[str]:
    """The environment variables that Prefect reads."""
    from prefect.settings.legacy import _get_valid_setting_names

    return _get_valid_setting_names(Settings)

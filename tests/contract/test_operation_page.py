"""docs/operation.md and its units: systemd accepts them, and every command that the page names can be given like that."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import prefect.settings
import pytest
import typer

from flows.cli import app
from tests.support.project import ROOT
from tests.support.systemd import UNITS, Unit

PAGE = (ROOT / "docs" / "operation.md").read_text(encoding="utf-8")
_ID = "01234567-89ab-cdef-0123-456789abcdef"
STANDS_FOR = {"<run id>": _ID, "<schedule id>": _ID, "<recipe>": "default", "<number>": "3"}
"""What a placeholder is replaced by; any other one by its own words."""
POSTGRESQL = ("createdb", "createuser", "pg_dump", "pg_restore", "psql")


def commands() -> Iterator[list[str]]:
    """The words of every command on the page, without `sudo` and variables."""
    page = re.sub(r"<([a-z ]+)>", lambda found: STANDS_FOR.get(found[0], found[1].replace(" ", "-")), PAGE)
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"^\$ (.+)$", page, re.MULTILINE) + re.findall(r"`([^`]+)`", text):
        words = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        words.whitespace_split = True
        for is_operator, command in itertools.groupby(words, key=lambda word: word in {"&&", "|", ";"}):
            if not is_operator:
                yield without_sudo(list(command))


def without_sudo(words: list[str]) -> list[str]:
    """What sudo runs, or these words; without the variables before it."""
    if words[:1] == ["sudo"]:
        words = words[3:] if words[1:2] == ["-u"] else words[1:]
    return list(itertools.dropwhile(lambda word: word.startswith("--preserve-env") or "=" in word, words))


def commands_of(program: str) -> dict[str, list[str]]:
    """The commands of a program on the page, and their arguments; its name alone is none."""
    found = [words for words in commands() if words and Path(words[0]).name == program]
    return {shlex.join(words): words[1:] for words in found if words[1:]}


EVERGREEN, PREFECT, DVC = commands_of("evergreen"), commands_of("prefect"), commands_of("dvc")


def test_commands_are_found() -> None:
    assert len(EVERGREEN) > 8
    assert len(PREFECT) > 8
    assert DVC


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
    assert commands_of(program)
    for command, arguments in commands_of(program).items():
        for option in (a.partition("=")[0] for a in arguments if a.startswith("-")):
            assert re.search(rf"(^|\s){re.escape(option)}\b", known), command


@pytest.fixture(params=sorted(path.name for path in UNITS.iterdir()))
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Unit:
    """Each unit of the project in `tmp_path`."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for program in ("prefect", "evergreen"):
        (tmp_path / ".venv/bin" / program).touch(0o755)
    return Unit(request.param, project=tmp_path, state=tmp_path)


def test_systemd_accepts_the_unit(unit: Unit, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    file = tmp_path / unit.name
    file.write_text(unit.text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # it ends with 0 when it ignores a line


def test_prefect_knows_the_settings_of_the_unit(unit: Unit) -> None:
    assert unknown_settings(unit.environment) == []


def test_prefect_knows_the_settings_on_the_page() -> None:
    assert unknown_settings(re.findall(r"PREFECT_[A-Z_]+", PAGE)) == []


def test_units_are_linked_on_the_page(unit: Unit) -> None:
    assert f"](systemd/{unit.name})" in PAGE


def unknown_settings(names: Iterable[str]) -> list[str]:
    """The variables with the name of a Prefect setting that there is not."""
    return [name for name in names if name.startswith("PREFECT_") and not hasattr(prefect.settings, name)]

"""The commands that messages and pages give for what is missing install this project, and not a stranger's package of its name."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from params.foundation import installation
from params.foundation.installation import install_extra, install_module
from tests.support.project import ROOT

EXTRAS = sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
BY_NAME = re.compile(
    r"\bevergreen\[|\b(?:pip3?|uv|uvx|pipx|poetry|conda)\b(?: \w+)* [^\n]*?['\"\s]evergreen\b(?![\w/.-])"
)
INSTALLS = re.compile(r"(?<!\S)\S*(?: -m)? ?\b(?:pip3?|uv pip) install\b")


@functools.cache
def published_files() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    texts = {}
    for name in listed.split("\0"):
        if (
            name
            and not name.startswith(("tests/", "CHANGELOG"))
            and (ROOT / name).suffix not in {".png", ".ico", ".gif"}
        ):
            texts[name] = (ROOT / name).read_text(encoding="utf-8", errors="replace")
    return texts


def test_nothing_is_installed_by_the_name_of_this_project() -> None:
    texts = dict(published_files())
    texts["pyproject.toml"] = re.sub(
        r'(?m)^    "evergreen\[.*$', "", texts["pyproject.toml"]
    )  # pip knows what refers to itself
    found = [f"{name}: {match[0]}" for name, text in texts.items() for match in BY_NAME.finditer(text)]
    assert found == []


def test_every_command_that_installs_names_its_environment() -> None:
    """Code has them from one module; a page names the Python of the environment."""
    code = {name for name, text in published_files().items() if name.endswith(".py") and INSTALLS.search(text)}
    assert code <= {"params/foundation/installation.py", ".ci/install.py"}
    for name, text in published_files().items():
        if not name.endswith(".py"):
            for match in INSTALLS.finditer(text):
                assert match[0].endswith(".venv/bin/python -m pip install"), f"{name}: {match[0]}"


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'evergreen[embedding]'",
        "pip install evergreen",
        "uv pip install --upgrade evergreen",
        "install the extra `evergreen[cluster]`",
        'pipx install "evergreen"',
        "uv add evergreen",
    ],
)
def test_installing_by_name_is_found(text: str) -> None:
    assert BY_NAME.search(text)


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("is_inside", [True, False])
def test_command_is_right_in_every_folder(
    extra: str, is_inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT if is_inside else tmp_path
    monkeypatch.chdir(folder)
    python, *options = shlex.split(install_extra(extra))
    assert (folder / python).samefile(sys.executable)
    assert (folder / python).parent.samefile(Path(sys.executable).parent)
    assert options[:4] == ["-m", "pip", "install", "-c"]
    assert (folder / options[4]).samefile(ROOT / "constraints.txt")
    assert options[5] == "-e"
    project, name = options[6][:-1].split("[")
    assert (folder / project).samefile(ROOT)
    assert name == extra


def test_environment_without_pip_is_filled_by_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda _: None)
    assert install_extra("embedding").startswith("uv pip install --python ")


@pytest.mark.parametrize(
    ("module", "package"), [("liger_kernel", "liger-kernel"), ("yaml", "PyYAML"), ("MySQLdb", "mysqlclient")]
)
def test_a_module_is_installed_by_the_name_of_its_package(module: str, package: str) -> None:
    assert install_module(module).endswith(f"pip install {package}")


def test_a_module_of_an_unknown_package_is_not_taken_for_its_name() -> None:
    words = install_module("surely_nobody.has_this")
    assert "`surely_nobody`" in words
    assert "install surely_nobody" not in words

"""What helps people to take part agrees with the project: the site, the checks before a commit and on a server, the tests' data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from docs import site
from tests.support import sample_data
from tests.support.project import ROOT


def tracked(*patterns: str) -> list[Path]:
    """Files of the project that git knows."""
    names = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in names.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_every_page_is_in_the_menu_of_the_site() -> None:
    settings = tomllib.loads((ROOT / "docs/zensical.toml").read_text())
    pages = {path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
    assert set(re.findall(r"'([\w/-]+\.md)'", str(settings["project"]["nav"]))) == pages


def test_dead_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file.yaml").touch()
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1> <a href="#top"></a> <a href="b.html#there"></a> <a href="https://example.org/x"></a>'
        '<a href="folder/file.yaml"></a> <a href="b.html#nowhere"></a> <img src="folder/none.png">'
    )
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html">back</a></p>')
    assert site.dead_links(tmp_path) == ["a.html: b.html#nowhere", "a.html: folder/none.png"]


def test_files_that_pages_link_to_come_along(tmp_path: Path) -> None:
    site.copy_pages(tmp_path)
    for name in ("README.md", "docs/gate.md", "docs/pipeline.svg", "docs/report-dark.png", "params/schema.py"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


def test_before_a_commit_and_on_a_server_run_the_same_checks() -> None:
    hooks = read_yaml(".pre-commit-config.yaml")["repos"][0]["hooks"]
    commands = {Path(hook["entry"].split()[0]).name for hook in hooks}
    assert commands == {"ruff", "mypy"}
    steps = read_yaml(".github/workflows/ci.yml")["jobs"]["run"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    targets = re.findall(r"^make (\w+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert targets == ["check", "docs", "test"]


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_issue_forms_have_what_github_needs(form: Path) -> None:
    read = read_yaml(form.relative_to(ROOT).as_posix())
    assert {"name", "description", "body"} <= read.keys()
    ids = [part["id"] for part in read["body"]]
    assert len(ids) == len(set(ids))
    assert all(part["attributes"]["label"] for part in read["body"])


def read_yaml(path: str) -> Any:
    return YAML(typ="safe").load((ROOT / path).read_text(encoding="utf-8"))


def test_data_of_tests_comes_from_the_variable_that_contributing_names() -> None:
    for page in ("CONTRIBUTING.md", ".ci/run"):
        assert sample_data.VARIABLE in (ROOT / page).read_text()
    beside = re.compile(r"ROOT\.parent|parents\[[3-9]\]")
    assert [path for path in tracked("tests/*.py") if beside.search(path.read_text()) and path != Path(__file__)] == []


def test_a_folder_of_data_that_is_missing_is_an_error_and_no_skip() -> None:
    environment = os.environ | {sample_data.VARIABLE: "/nowhere"}
    command = [sys.executable, "-c", "import tests.support.sample_data"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "EVERGREEN_SAMPLE_DATA names /nowhere, which is no folder" in done.stderr

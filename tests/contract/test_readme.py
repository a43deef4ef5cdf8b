"""What the README and the other pages name exists: commands, make targets, files, tests, keys of the default recipe."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import typer

from flows.cli import app
from tasks import commands as tasks_cli
from tests.support.project import ROOT

PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "AGENTS", "SECURITY")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_readme_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    for path, names_of_test in re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)", page.read_text()):
        for name in names_of_test.split("::"):
            assert re.search(rf"\b(def|class) {name}\b", (ROOT / path).read_text()), f"{path}::{names_of_test}"
    for path in re.findall(r"python -m pytest (tests/[\w/.]+)", page.read_text()):
        assert (ROOT / path).exists(), path


def names(commands: typer.Typer) -> set[str]:
    """The commands there are."""
    return set(typer.main.get_command(commands).commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_readme_exist(page: Path) -> None:
    text = re.sub(
        r"^```yaml\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )  # may show what is to be added
    for command in re.findall(r"python -m tasks ([a-z-]+)", text):
        assert command in names(tasks_cli.app), command
    for command in re.findall(r"(?:\$ |`)evergreen ([a-z][a-z-]*)", text):
        assert command in names(app), command
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:\$ |`)make ([a-z-]+)", text):
        assert target in targets, target
    for module in re.findall(r"python -m (flows[.a-z]*)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


def test_readme_names_every_section_of_a_recipe() -> None:
    from params.schema import Recipe

    (sentence,) = re.findall(r"is a whole run: ([^.]+)\.", (ROOT / "README.md").read_text().replace("\n", " "))
    assert sorted(re.findall(r"\w+", sentence)) == sorted(Recipe.model_fields)


def test_readme_says_the_version() -> None:
    """The status on the first screen is that of pyproject.toml."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"**Status**: {version}, " in (ROOT / "README.md").read_text()


def test_words_of_the_project_are_explained_at_first_use() -> None:
    text = (ROOT / "README.md").read_text()
    for word in ("recipe", "champion", "gate"):
        assert re.search(word, text, re.IGNORECASE).start() == text.index(f"**{word}**") + 2, word  # type: ignore[union-attr]

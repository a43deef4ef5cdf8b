"""Every guarantee names tests, and every test that it names is there."""

from __future__ import annotations

import re

import pytest

from tests.support.project import ROOT

PAGES = {
    page: (ROOT / "docs" / page).read_text(encoding="utf-8")
    for page in ("guarantees.md", "releases.md", "deployment.md")
}
GUARANTEES = {
    f"{page} {title}": text
    for page, content in PAGES.items()
    for title, text in re.findall(r"^## (\d+\. [^\n]+)\n(.*?)(?=^## |\Z)", content, re.MULTILINE | re.DOTALL)
}


@pytest.mark.parametrize("title", GUARANTEES)
def test_guarantee_names_tests_and_limits(title: str) -> None:
    assert "not promised" in GUARANTEES[title]
    _assert_tests_exist(GUARANTEES[title])


def test_security_page_names_tests() -> None:
    sections = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(sections) == 5
    for section in sections:
        _assert_tests_exist(section)


def _assert_tests_exist(text: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert named
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_named_benchmarks_exist() -> None:
    for path in re.findall(r"`(benchmarks/\w+\.py)`", " ".join(PAGES.values())):
        assert (ROOT / path).exists(), path

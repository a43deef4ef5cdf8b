"""Every guarantee names tests, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
GUARANTEES = dict(re.findall(r"^## (\d+\. [^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("title", GUARANTEES)
def test_a_guarantee_has_tests_and_limits(title: str) -> None:
    text = GUARANTEES[title]
    assert "not promised" in text
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert named
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_the_benchmarks_that_are_named_are_there() -> None:
    for path in re.findall(r"`(benchmarks/\w+\.py)`", PAGE):
        assert (ROOT / path).exists(), path

"""One run for the tests that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from params.artifacts import Artifacts
from tests.unit.tasks.report import example


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """A run that was published; nobody changes it."""
    return example.write(tmp_path_factory.mktemp("published"))


@pytest.fixture
def run(tmp_path: Path) -> Artifacts:
    """A run that was published, for one test alone."""
    return example.write(tmp_path)


@pytest.fixture
def plain(run: Artifacts) -> Artifacts:
    """The same without what charts are drawn from, which takes longest."""
    for path in ("evaluation/details.json", "history/train.csv", "history/validation.csv"):
        (run.run / path).unlink()
    return run

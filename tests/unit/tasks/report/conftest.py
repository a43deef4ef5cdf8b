"""Example runs for the tests of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from params.foundation.artifacts import Artifacts
from tests.unit.tasks.report import example


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """A published run, shared: do not change it."""
    return example.write(tmp_path_factory.mktemp("published"))


@pytest.fixture
def run(tmp_path: Path) -> Artifacts:
    """A published run that a test may change."""
    return example.write(tmp_path)


@pytest.fixture
def plain(run: Artifacts) -> Artifacts:
    """A published run without chart data: charts are slow."""
    for path in ("evaluation/details.json", "history/train.csv", "history/validation.csv"):
        (run.run / path).unlink()
    return run

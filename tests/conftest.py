"""Fixtures for tests that drive a whole project; tests.support.project makes it."""

from __future__ import annotations

import compileall
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.project import CODE, ROOT, Project, copy_project

# Tests run side by side, and their models are too small to gain from threads. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the code once, for all projects that tests make of it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for name in CODE:
            compileall.compile_dir(ROOT / name, quiet=2)


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for the session: its first start takes long."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[Project]:
    """A project whose tiny recipe the flow has run; tests of a module share it, in order."""
    root = tmp_path_factory.mktemp("finished")
    copy_project(root)
    made = Project(root, prefect_home)
    made.run("git", "init", "-q", "-b", "main")
    try:
        made.first_run = made.run("python", "-m", "flows.cli", "run", "tiny")
        yield made
    finally:
        made.end()


@pytest.fixture
def project(tmp_path: Path, prefect_home: Path) -> Iterator[Project]:
    """A project in which nothing has run."""
    root = tmp_path / "project"
    copy_project(root)
    made = Project(root, prefect_home)
    made.run("git", "init", "-q", "-b", "main")
    try:
        yield made
    finally:
        made.end()

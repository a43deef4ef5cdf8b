"""A victim that tests share, and lines that pytest prints at the end of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.victims import Victim

SUMMARY = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A victim whose golden run is finished."""
    steps = {"training.max_steps": 100, "training.save_steps": 5, "training.eval_steps": 20}
    victim = Victim(tmp_path_factory.mktemp("trained"), steps)
    try:
        victim.train_golden()
        yield victim
    finally:
        victim.project.end()


@pytest.fixture
def victim(_trained: Victim) -> Iterator[Victim]:
    """A victim whose golden run is finished, without any other run."""
    _trained.delete_run()
    try:
        yield _trained
    finally:
        _trained.project.end()


@pytest.fixture
def summary_lines(pytestconfig: pytest.Config) -> list[str]:
    """Lines that are printed at the end of the session."""
    return pytestconfig.stash.setdefault(SUMMARY, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the lines."""
    for line in config.stash.get(SUMMARY, []):
        terminalreporter.write_line(line)

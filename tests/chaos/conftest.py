"""What the chaos suite says at its end, whatever pytest was told to show."""

from __future__ import annotations

import pytest

LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def said_at_end(pytestconfig: pytest.Config) -> list[str]:
    """Lines for the end of the session."""
    return pytestconfig.stash.setdefault(LINES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show them."""
    for line in config.stash.get(LINES, []):
        terminalreporter.write_line(line)

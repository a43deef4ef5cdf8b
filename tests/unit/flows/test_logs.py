"""What people read of a run on the terminal, and what Prefect's log has."""

from __future__ import annotations

import logging
import sys

import pytest

from flows.run.logs import shorten_logs_of_runs
from params import GateRefusedError

RUNS = ("prefect.flow_runs", "prefect.task_runs")
ERROR = GateRefusedError("publish@tiny", "the gate refuses the model: loss 2 is above 1, the recipe's floor; " * 9, "x")


class Lines(logging.Handler):
    """What a handler is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[Lines, Lines]:
    """What Prefect's log gets, and the terminal."""
    api, terminal = Lines(), Lines()
    monkeypatch.setattr(logging.getLogger(), "handlers", [terminal])
    for name in RUNS:
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [api])
        monkeypatch.setattr(logger, "filters", [])
        monkeypatch.setattr(logger, "propagate", True)
        monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setattr(logging.getLogger("prefect"), "propagate", True)
    shorten_logs_of_runs()
    shorten_logs_of_runs()
    return api, terminal


def test_an_error_of_a_stage_is_whole_in_the_log_and_short_on_the_terminal(both: tuple[Lines, Lines]) -> None:
    api, terminal = both
    logging.getLogger(RUNS[1]).error("Task run failed with exception: %r", ERROR, exc_info=ERROR)
    logging.getLogger(RUNS[0]).error("Encountered an exception: %r", ERROR, exc_info=ERROR)
    assert api.lines == [f"Task run failed with exception: {ERROR!r}"]
    (line,) = terminal.lines
    assert line.startswith("Task run failed with exception: GateRefusedError: the gate refuses the model: loss 2")
    assert len(line) <= 121


def test_warnings_of_libraries_are_not_printed(both: tuple[Lines, Lines]) -> None:
    _, terminal = both
    logging.getLogger("huggingface_hub").handle(
        logging.LogRecord("huggingface_hub", logging.WARNING, f"{sys.prefix}/hub.py", 1, "advice", (), None)
    )
    logging.getLogger("flows.server.own").warning("waiting for Prefect's server")
    assert terminal.lines == ["waiting for Prefect's server"]


def test_an_error_of_our_own_code_keeps_its_traceback(both: tuple[Lines, Lines]) -> None:
    try:
        int("odd")
    except ValueError:
        logging.getLogger(RUNS[1]).exception("Task run failed")
    assert all("in test_an_error" in kind.lines[0] for kind in both)


@pytest.mark.parametrize(
    ("name", "level", "text", "shown"),
    [
        ("prefect.task_runs", logging.INFO, "ingest@tiny: nothing has changed", True),
        ("prefect.task_runs", logging.INFO, "Finished in state Completed()", False),
        ("prefect.task_runs", logging.ERROR, "Crash detected! Execution was aborted by an interrupt signal.", False),
        ("prefect.flow_runs", logging.ERROR, "Crash detected! Execution was aborted by an interrupt signal.", False),
        ("prefect.task_runs", logging.ERROR, "Crash detected! Execution was aborted by a termination signal.", False),
        ("prefect.flow_runs", logging.ERROR, "Crash detected! Request to http://x failed.", True),
        ("prefect.flow_runs", logging.INFO, "Finished in state Published", True),
    ],
)
def test_what_another_line_says_is_in_the_log_only(
    both: tuple[Lines, Lines], name: str, level: int, text: str, *, shown: bool
) -> None:
    api, terminal = both
    logging.getLogger(name).log(level, text)
    assert api.lines == [text.partition("(")[0]]
    assert bool(terminal.lines) is shown

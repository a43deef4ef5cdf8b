"""Prefect's log on the terminal: without tracebacks of errors that a user can cause, and above the bar of a stage."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from params import EvergreenError
from params.foundation.artifacts import Artifacts
from params.foundation.secrets import without_secrets
from trainer.reporting import progress_bar

if TYPE_CHECKING:
    from rich.console import Console


class TracebackAndSecretFilter(logging.Filter):
    """A filter that removes secrets, and the traceback of an `EvergreenError`, whose message says how to fix it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through."""
        if record.exc_info and isinstance(record.exc_info[1], EvergreenError):
            record.exc_info = None
        if record.exc_info:
            record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        message = record.getMessage()
        if (shown := without_secrets(message)) != message:
            record.msg, record.args = shown, ()
        return True


def hide_tracebacks_and_secrets() -> None:
    """Add the filter to Prefect's loggers of runs."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(f, TracebackAndSecretFilter) for f in logger.filters):
            logger.addFilter(TracebackAndSecretFilter())


@contextlib.contextmanager
def draw_stage_progress(artifacts: Artifacts) -> Iterator[None]:
    """Draw the progress of the stages that run in the block, where Prefect logs to a terminal."""
    if not progress_bar.is_terminal(sys.stderr):
        yield
        return
    with progress_bar.draw_child_progress(artifacts.scratch / "progress", _console):
        yield


def _console() -> Console:
    """Return the console of Prefect's log: what is logged must go above the bar."""
    from prefect.logging.handlers import PrefectConsoleHandler
    from rich.console import Console

    handlers = (h for h in logging.getLogger().handlers if isinstance(h, PrefectConsoleHandler))
    return next((handler.console for handler in handlers), None) or Console(stderr=True)

"""Prefect's log without tracebacks for what a user can cause: such an error says itself where, what and how to mend it."""

from __future__ import annotations

import logging

from params import EvergreenError


class WithoutTraceback(logging.Filter):
    """Takes the traceback of an `EvergreenError` off its log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through."""
        if record.exc_info and isinstance(record.exc_info[1], EvergreenError):
            record.exc_info = None
        return True


def install() -> None:
    """Apply the filter to Prefect's run loggers."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(f, WithoutTraceback) for f in logger.filters):
            logger.addFilter(WithoutTraceback())

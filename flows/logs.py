"""Prefect's log without tracebacks of errors that a user can cause: their message says where, what and how to fix it."""

from __future__ import annotations

import logging

from params import EvergreenError


class WithoutTraceback(logging.Filter):
    """A filter that removes the traceback of an `EvergreenError` from its log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through."""
        if record.exc_info and isinstance(record.exc_info[1], EvergreenError):
            record.exc_info = None
        return True


def hide_tracebacks() -> None:
    """Add the filter to Prefect's loggers of runs."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(f, WithoutTraceback) for f in logger.filters):
            logger.addFilter(WithoutTraceback())

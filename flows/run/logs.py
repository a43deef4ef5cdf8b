"""Prefect's log on the terminal: without tracebacks of errors that a user can cause."""

from __future__ import annotations

import logging
import re
from typing import Final

from params import EvergreenError
from params.foundation.secrets import without_secrets
from tasks.report.formatting import format_one_line

_MAX_LENGTH: Final = 200


class TracebackAndSecretFilter(logging.Filter):
    """A filter that removes secrets, and the traceback of an `EvergreenError`, whose message says how to fix it.

    Of a state only its name is logged, and of an error its beginning: the state has all of it, and the command ends with it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record through, unless another one says the same."""
        if record.exc_info and isinstance(record.exc_info[1], EvergreenError):
            if record.name == "prefect.flow_runs":  # the state of the run, which the next line names, is this error
                return False
            record.exc_info = None
        if record.exc_info:
            record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        message = record.getMessage()
        shown = without_secrets(message)
        if shown.startswith("Finished in state"):
            shown = shown.partition("(")[0]
        if record.levelno >= logging.ERROR:
            shown = format_one_line(re.split(r"\n|\\n", shown)[0], _MAX_LENGTH)
        if shown != message:
            record.msg, record.args = shown, ()
        return True


def hide_tracebacks_and_secrets() -> None:
    """Add the filter to Prefect's loggers of runs."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(f, TracebackAndSecretFilter) for f in logger.filters):
            logger.addFilter(TracebackAndSecretFilter())

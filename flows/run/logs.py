"""Prefect's log: without secrets and tracebacks of errors that a user can cause; and on the terminal, without what another line says."""

from __future__ import annotations

import logging
import re
from typing import Final

from params import EvergreenError
from params.foundation.secrets import without_secrets
from tasks.report.formatting import format_one_line
from trainer.reporting.log import is_for_people

_RUNS: Final = ("prefect.flow_runs", "prefect.task_runs")
_MAX_LENGTH: Final = 120


class TracebackAndSecretFilter(logging.Filter):
    """A filter that removes secrets, and the traceback of an `EvergreenError`, whose message says how to fix it.

    Of a state only its name is logged, which has the rest.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record through, unless another one says the same."""
        if record.exc_info and isinstance(record.exc_info[1], EvergreenError):
            if record.name == "prefect.flow_runs":  # the state of the run, which the next line names, is this error
                return False
            record.error, record.exc_info = record.exc_info[1], None
        if record.exc_info:
            record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        message = record.getMessage()
        shown = without_secrets(message)
        if shown.startswith("Finished in state"):
            shown = shown.partition("(")[0]
        if shown != message:
            record.msg, record.args = shown, ()
        return True


class TerminalFilter(logging.Filter):
    """A filter for what prints the log: of an error only its beginning, because the command ends with it; no end that is said already.

    Warnings of libraries are left out. The stage says that it has ended, and the command or the state that Ctrl-C or SIGTERM has ended it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record through, shortened if it is an error."""
        shown = record.getMessage()
        if not (record.name.startswith("prefect") or is_for_people(record)):
            return False
        if record.name == _RUNS[1] and shown.startswith("Finished in state"):
            return False
        if record.name not in _RUNS or record.levelno < logging.ERROR:
            return True
        if error := getattr(record, "error", None):
            shown = shown.replace(repr(error), f"{type(error).__name__}: {error.what}")
        record.msg, record.args = format_one_line(re.split(r"\n|\\n", shown)[0], _MAX_LENGTH), ()
        return not re.match("Crash detected!.* (interrupt|termination) signal", shown)


def shorten_logs_of_runs() -> None:
    """Add the filters to Prefect's loggers of runs, and to what prints them."""
    for place, kind in (
        *((logging.getLogger(name), TracebackAndSecretFilter) for name in _RUNS),
        *((handler, TerminalFilter) for handler in logging.getLogger().handlers),
    ):
        if not any(isinstance(f, kind) for f in place.filters):
            place.addFilter(kind())

"""Log lines about a Hub that does not answer: one per reason, however long it lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


def log_changes(command: str) -> Callable[[str], None]:
    """Return a function that logs a warning, but not the same one twice in a row."""
    last = ""

    def log(line: str) -> None:
        nonlocal last
        if line != last:
            logger.warning("%s: %s", command, line)
        last = line

    return log

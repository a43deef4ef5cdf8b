"""A request to stop a training: a signal, or a file in the run's folder."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

STOP = "stop"
"""The file."""


def listen_for_stop(folder: Path) -> Callable[[], bool]:
    """Catch SIGTERM and SIGINT, and return a function that returns whether a stop of the run in `folder` was requested."""
    caught: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: caught.append(number))
    return lambda: bool(caught) or (folder / STOP).exists()

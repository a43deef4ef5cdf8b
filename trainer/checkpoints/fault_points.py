"""The points of a save at which tests kill the process; a kill at any of them must do no harm."""

from __future__ import annotations

import os
import signal

WRITE_POINTS = (
    "best.weights",
    "best.manifest",
    "best.flushed",
    "best.renamed",
    "best.retired",
    "checkpoint.state",
    "checkpoint.weights",
    "checkpoint.optimizer",
    "checkpoint.manifest",
    "checkpoint.flushed",
    "checkpoint.renamed",
    "checkpoint.retained",
)
"""In the order of a save. Each is reached when what it names is done."""
KILL_AT = "EVERGREEN_KILL_AT"
"""Environment variable `<point>:<n>`, for tests: the process kills itself when it reaches the point for the n-th time."""
_counts: dict[str, int] = {}


def reached(point: str) -> None:
    """Mark that a save has reached a point."""
    assert point in WRITE_POINTS, point
    if target := os.environ.get(KILL_AT):
        _counts[point] = _counts.get(point, 0) + 1
        if target == f"{point}:{_counts[point]}":
            os.kill(os.getpid(), signal.SIGKILL)

"""The instants of a save at which the process may be killed without harm; the chaos suite kills it at each."""

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
"""In the order of a save; each is passed when what it names is done."""
KILL_AT = "EVERGREEN_KILL_AT"
"""Environment variable `<write point>:<n>`: the process ends by SIGKILL when it passes there the n-th time. For tests."""
_passed: dict[str, int] = {}


def reached(point: str) -> None:
    """Pass a write point."""
    assert point in WRITE_POINTS, point
    if wanted := os.environ.get(KILL_AT):
        _passed[point] = _passed.get(point, 0) + 1
        if wanted == f"{point}:{_passed[point]}":
            os.kill(os.getpid(), signal.SIGKILL)

"""The metrics of a training as JSON lines, in the run's folder while it trains: `tail -f .../metrics.jsonl`.

    {"step": 4, "epoch": 0.4, "eval_loss": 3.1, "eval_token_accuracy": 0.4}

The lines are Trainer's log without readings of a clock, so that equal trainings have equal lines. A resumed run first
rewrites them from the checkpoint's log, which drops what was logged after that checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

FILE = "metrics.jsonl"
CLOCK_SUFFIXES = ("runtime", "per_second", "preparation_time")
"""Ends of the names of values that depend on a clock, so that equal trainings differ in them."""
_SUMMARY = "train_loss"
"""Only in Trainer's last line; its mean restarts at every start."""


def without_timing_metrics(history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a Trainer's log without clock readings: step and epoch, then the others by name."""
    return [
        {"step": entry["step"], "epoch": entry.get("epoch")}
        | {k: v for k, v in sorted(entry.items()) if k not in ("step", "epoch") and not k.endswith(CLOCK_SUFFIXES)}
        for entry in history
        if _SUMMARY not in entry
    ]


def format_json_lines(history: Iterable[Mapping[str, Any]]) -> str:
    """Return a Trainer's log as JSON lines; a value that is not finite becomes null."""
    return "".join(
        json.dumps({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}) + "\n"
        for entry in without_timing_metrics(history)
    )

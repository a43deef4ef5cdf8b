"""What metrics of an objective say of summed statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def undefined_metrics(objective: Any, totals: Any, state: Mapping[str, Any]) -> set[str]:
    """The metrics that rows with these summed statistics do not have."""
    sums = objective.sums(totals, state)
    return {name for name, metric in objective.metrics.items() if not metric.is_defined(sums)}

"""What holds of several statistical tests together: the gate's of slices, and drift's of columns."""

from __future__ import annotations

from collections.abc import Sequence


def holm_rejections(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of several tests reject by Holm's method (1979): all rejections are right with probability 1 - `level`."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > level / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected

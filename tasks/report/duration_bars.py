"""Bars that show how long each stage took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.report.canvas import CANDIDATE, LINE, SOFT, WIDTH, canvas, style
from tasks.report.formatting import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_durations(by_stage: Mapping[str, float]) -> Figure:
    """Draw seconds by stage."""
    description = ", ".join(f"{stage} {duration(value)}" for stage, value in by_stage.items())
    longest = max(by_stage.values()) or 1.0
    with style():
        figure, axes = canvas(WIDTH, 26 * len(by_stage) + 4, f"Time by stage: {description}.")
        left, right = 70.0, WIDTH - 84
        for i, (stage, value) in enumerate(by_stage.items()):
            y = 26.0 * i + 15
            axes.text(6, y, stage, va="center")
            axes.barh(y, right - left, height=10, left=left, color=LINE, linewidth=0)
            axes.barh(y, (right - left) * value / longest, height=10, left=left, color=CANDIDATE, linewidth=0)
            axes.text(WIDTH - 6, y, duration(value), ha="right", va="center", color=SOFT)
    return figure

"""The reliability diagram: how often the model is right, by its confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.report.canvas import CANDIDATE, LINE, SOFT, WIDTH, empty_figure, style
from tasks.report.formatting import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Bin:
    """Rows of similar confidence."""

    confidence: float
    accuracy: float
    rows: int


def draw_calibration(bins: Sequence[Bin]) -> Figure:
    """Draw accuracy by confidence, and the number of rows by confidence."""
    from matplotlib.ticker import FuncFormatter

    total = sum(one.rows for one in bins)
    description = "; ".join(f"confidence {percent(b.confidence)}, right {percent(b.accuracy)}" for b in bins)
    with style():
        figure = empty_figure(WIDTH, 320, f"Accuracy by confidence: {description}.")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        figure.subplots_adjust(left=0.135, right=0.965, top=0.93, bottom=0.13, hspace=0.22)
        upper.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (3, 3)), label="confidence equals accuracy")
        for one in bins:
            upper.plot([one.confidence] * 2, [one.confidence, one.accuracy], color=LINE, linewidth=3)
        upper.plot(
            [b.confidence for b in bins],
            [b.accuracy for b in bins],
            "o-",
            color=CANDIDATE,
            markersize=6,
            label="the model",
        )
        upper.legend(loc="best")
        upper.set(xlim=(0, 1), ylim=(0, 1.02), title="Share of rows that are right")
        lower.bar(
            [b.confidence for b in bins], [b.rows / total for b in bins], width=0.06, color=CANDIDATE, linewidth=0
        )
        lower.set(xlabel="confidence of the model", ylim=(0, None))
        lower.set_title("share of rows", color=SOFT, fontsize=10, weight="normal")
        lower.locator_params(axis="y", nbins=2)
        for axes in (upper, lower):
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
            axes.xaxis.grid(visible=False)
    return figure

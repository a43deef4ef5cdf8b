"""The chart of how often a model is right by its confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tasks.report.canvas import CANDIDATE, LINE, SOFT, WIDTH, empty_figure, use_report_style
from tasks.report.formatting import format_percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_calibration(bins: Sequence[Mapping[str, float]]) -> Figure:
    """Draw how often the model is right by its confidence, and the number of rows by confidence; bins as in `CalibrationBins`."""
    from matplotlib.ticker import FuncFormatter

    confidence, accuracy, rows = ([one[name] for one in bins] for name in ("confidence", "accuracy", "rows"))
    pairs = list(zip(confidence, accuracy, strict=True))
    text = "; ".join(f"confidence {format_percent(sure)}, right {format_percent(right)}" for sure, right in pairs)
    with use_report_style():
        figure = empty_figure(WIDTH, 320, f"Accuracy by confidence: {text}.")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        figure.subplots_adjust(left=0.135, right=0.965, top=0.93, bottom=0.13, hspace=0.22)
        upper.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (3, 3)), label="confidence equals accuracy")
        for sure, right in pairs:
            upper.plot([sure, sure], [sure, right], color=LINE, linewidth=3)
        upper.plot(confidence, accuracy, "o-", color=CANDIDATE, markersize=6, label="the model")
        upper.legend(loc="best")
        upper.set(xlim=(0, 1), ylim=(0, 1.02), title="Share of rows that are right")
        lower.bar(confidence, [one / sum(rows) for one in rows], width=0.06, color=CANDIDATE, linewidth=0)
        lower.set(xlabel="confidence of the model", ylim=(0, None))
        lower.set_title("share of rows", color=SOFT, fontsize=10, weight="normal")
        lower.locator_params(axis="y", nbins=2)
        for axes in (upper, lower):
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
            axes.xaxis.grid(visible=False)
    return figure

"""The kinds of charts with axes, and the bars: curves, calibration, time; from plain figures to drawings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.report.drawing import CANDIDATE, CARD, LINE, SOFT, WIDTH, canvas, sheet, short, style
from tasks.report.wording import line, number, percent, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 400
_LOG_FROM, _LOG_ABOVE = 50.0, 20.0
"""A curve with so large a figure, so many times its smallest, is drawn on a logarithmic axis."""
_FEW_POINTS = 40


@dataclass(frozen=True)
class Bin:
    """Rows of like confidence."""

    confidence: float
    accuracy: float
    rows: int


@dataclass(frozen=True)
class Panel:
    """Curves of one figure over the optimizer steps."""

    title: str
    train: Sequence[tuple[float, float]] = ()
    """Steps and figures of the training."""
    validation: Sequence[tuple[float, float]] = ()
    best_step: float | None = None
    """Step whose weights were kept."""


def calibration(bins: Sequence[Bin]) -> Figure:
    """A reliability diagram: the accuracy of rows by the model's confidence, and how many rows there are of each."""
    from matplotlib.ticker import FuncFormatter

    total = sum(one.rows for one in bins)
    told = "; ".join(f"confidence {percent(b.confidence)}, right {percent(b.accuracy)}" for b in bins)
    with style():
        figure = sheet(WIDTH, 320, f"Accuracy by confidence: {told}.")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        figure.subplots_adjust(left=0.135, right=0.965, top=0.93, bottom=0.13, hspace=0.22)
        upper.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (3, 3)), label="as sure as right")
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
        upper.set(xlim=(0, 1), ylim=(0, 1.02), title="Share of rows that it gets right")
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


def curves(found: Sequence[Panel]) -> Figure:
    """Curves over the optimizer steps, one panel beside another; the step whose weights were kept is marked."""
    with style():
        figure = sheet(WIDTH * len(found), 230, " ".join(_told(panel) for panel in found))
        for i, panel in enumerate(found):
            axes = figure.add_axes(
                ((44 + WIDTH * i) / (WIDTH * len(found)), 0.17, (WIDTH - 54) / (WIDTH * len(found)), 0.72)
            )
            _curve(axes, panel)
    return figure


def durations(found: Mapping[str, float]) -> Figure:
    """Seconds by stage, as bars."""
    told = ", ".join(f"{stage} {seconds(value)}" for stage, value in found.items())
    longest = max(found.values()) or 1.0
    with style():
        figure, axes = canvas(WIDTH, 26 * len(found) + 4, f"Time by stage: {told}.")
        left, right = 70.0, WIDTH - 84
        for i, (stage, value) in enumerate(found.items()):
            y = 26.0 * i + 15
            axes.text(6, y, stage, va="center")
            axes.barh(y, right - left, height=10, left=left, color=LINE, linewidth=0)
            axes.barh(y, (right - left) * value / longest, height=10, left=left, color=CANDIDATE, linewidth=0)
            axes.text(WIDTH - 6, y, seconds(value), ha="right", va="center", color=SOFT)
    return figure


def _told(panel: Panel) -> str:
    last = [f"{name} {number(curve[-1][1])}" for name, curve in _lines(panel) if curve]
    best = f"; best weights at step {number(panel.best_step)}" if panel.best_step is not None else ""
    return f"{panel.title} over the training, at its end: {', '.join(last)}{best}."


def _lines(panel: Panel) -> list[tuple[str, Sequence[tuple[float, float]]]]:
    return [("training", panel.train), ("validation", panel.validation)]


def _curve(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    figures = [value for _, curve in _lines(panel) for _, value in curve]
    if min(figures) > 0 and max(figures) > _LOG_ABOVE and max(figures) / min(figures) > _LOG_FROM:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(short(line(panel.title, 60), 22))
    if panel.best_step is not None:
        axes.axvline(panel.best_step, color=SOFT, linewidth=1, linestyle=(0, (3, 3)))
    if panel.train:
        axes.plot(*zip(*_thin(panel.train), strict=True), color=SOFT, linewidth=1.2, label="training")
    if panel.validation:
        marker = "o" if len(panel.validation) <= _FEW_POINTS else ""
        curve = zip(*_thin(panel.validation), strict=True)
        axes.plot(*curve, color=CANDIDATE, marker=marker, markersize=3.5, label="validation")
    if kept := [(step, value) for step, value in panel.validation if step == panel.best_step]:
        axes.plot(*kept[-1], "o", color=CANDIDATE, markerfacecolor=CARD, markersize=8)
        axes.set_title(f"kept: {number(kept[-1][1])}", loc="right", color=CANDIDATE, fontsize=11)
    axes.set_xlabel("optimizer step")
    axes.xaxis.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if panel.train and panel.validation:
        axes.legend(loc="best")


def _thin(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most 400 points, each the mean of as many neighbours."""
    size = math.ceil(len(curve) / MAX_POINTS)
    if size <= 1:
        return list(curve)
    groups = [curve[i : i + size] for i in range(0, len(curve), size)]
    return [(sum(s for s, _ in g) / len(g), sum(v for _, v in g) / len(g)) for g in groups]

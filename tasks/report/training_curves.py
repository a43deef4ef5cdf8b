"""Curves of training: loss and metrics over the optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.report.canvas import CANDIDATE, CARD, SOFT, WIDTH, empty_figure, short, style
from tasks.report.formatting import number, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 400
_LOG_FROM, _LOG_ABOVE = 50.0, 20.0
"""The axis is logarithmic if the largest value is above the second number and this many times the smallest."""
_FEW_POINTS = 40


@dataclass(frozen=True)
class Panel:
    """The curves of one metric."""

    title: str
    train: Sequence[tuple[float, float]] = ()
    """Steps and values."""
    validation: Sequence[tuple[float, float]] = ()
    best_step: float | None = None
    """The step whose weights were kept."""


def draw_curves(panels: Sequence[Panel]) -> Figure:
    """Draw panels side by side; the step whose weights were kept is marked."""
    with style():
        figure = empty_figure(WIDTH * len(panels), 230, " ".join(_description(panel) for panel in panels))
        for i, panel in enumerate(panels):
            axes = figure.add_axes(
                ((44 + WIDTH * i) / (WIDTH * len(panels)), 0.17, (WIDTH - 54) / (WIDTH * len(panels)), 0.72)
            )
            _curve(axes, panel)
    return figure


def _description(panel: Panel) -> str:
    last = [f"{name} {number(curve[-1][1])}" for name, curve in _lines(panel) if curve]
    best = f"; best weights at step {number(panel.best_step)}" if panel.best_step is not None else ""
    return f"{panel.title} over the training; final values: {', '.join(last)}{best}."


def _lines(panel: Panel) -> list[tuple[str, Sequence[tuple[float, float]]]]:
    return [("training", panel.train), ("validation", panel.validation)]


def _curve(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    values = [value for _, curve in _lines(panel) for _, value in curve]
    if min(values) > 0 and max(values) > _LOG_ABOVE and max(values) / min(values) > _LOG_FROM:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(short(one_line(panel.title, 60), 22))
    if panel.best_step is not None:
        axes.axvline(panel.best_step, color=SOFT, linewidth=1, linestyle=(0, (3, 3)))
    if panel.train:
        axes.plot(*zip(*_thin(panel.train), strict=True), color=SOFT, linewidth=1.2, label="training")
    if panel.validation:
        marker = "o" if len(panel.validation) <= _FEW_POINTS else ""
        curve = zip(*_thin(panel.validation), strict=True)
        axes.plot(*curve, color=CANDIDATE, marker=marker, markersize=3.5, label="validation")
    if best := [(step, value) for step, value in panel.validation if step == panel.best_step]:
        axes.plot(*best[-1], "o", color=CANDIDATE, markerfacecolor=CARD, markersize=8)
        axes.set_title(f"kept: {number(best[-1][1])}", loc="right", color=CANDIDATE, fontsize=11)
    axes.set_xlabel("optimizer step")
    axes.xaxis.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if panel.train and panel.validation:
        axes.legend(loc="best")


def _thin(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most MAX_POINTS points, each the mean of the same number of neighbours."""
    size = math.ceil(len(curve) / MAX_POINTS)
    if size <= 1:
        return list(curve)
    groups = [curve[i : i + size] for i in range(0, len(curve), size)]
    return [(sum(s for s, _ in g) / len(g), sum(v for _, v in g) / len(g)) for g in groups]

"""The kinds of charts, from plain figures to drawings.

Charts are narrow, so that a phone shows their text at its own size. Most have no axis of figures: what is drawn also
stands beside it, to as many digits as its interval leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.report.drawing import (
    BAD,
    BASE,
    CANDIDATE,
    CARD,
    CHAMPION,
    GOOD,
    INK,
    LINE,
    SOFT,
    canvas,
    sheet,
    style,
)
from tasks.report.wording import gain, line, number, percent, plural, seconds, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 320.0
"""Of a chart, in pixels."""
MAX_POINTS = 400
_LOG_FROM, _LOG_ABOVE = 50.0, 20.0
"""A curve with so large a figure, so many times its smallest, is drawn on a logarithmic axis."""
_FEW_POINTS = 40
MODELS = {"model": (CANDIDATE, "o"), "champion": (CHAMPION, "D"), "untrained": (BASE, "s")}
NAMES = {"model": "candidate", "champion": "champion", "untrained": "before training"}


@dataclass(frozen=True)
class Gain:
    """A paired difference: above zero is better, whatever the metric's direction."""

    metric: str
    value: float
    low: float
    high: float
    bar: float | None = None
    """What the gate asks `low` to be above, where this difference decides."""


@dataclass(frozen=True)
class Value:
    """A model's figure, with its interval if it has one."""

    model: str
    """`model`, `champion` or `untrained`."""
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Part:
    """A slice's figure, with its interval if it has enough rows for one, and the champion's."""

    name: str
    rows: int
    value: float
    low: float | None = None
    high: float | None = None
    champion: float | None = None


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


def strip(one: Gain, *, against: str) -> Figure:
    """One difference with its interval, around zero, where the figures stand beside it."""
    told = f"Gain in {one.metric} over the {against}: {gain(one.value, one.low, one.high)}"
    with style():
        figure, axes = canvas(260, 44, f"{told}, interval {span(one.low, one.high, signed=True)}.")
        _strip(axes, one, y=11, left=6, right=254)
        _sides(axes, y=38, left=6, right=254)
    return figure


def gains(found: Sequence[Gain], *, against: str) -> Figure:
    """Differences from one model with their intervals, each on a scale of its own around zero."""
    told = "; ".join(f"{g.metric} {gain(g.value, g.low, g.high)} ({span(g.low, g.high, signed=True)})" for g in found)
    with style():
        figure, axes = canvas(WIDTH, 46 * len(found) + 20, f"Gain over the {against}, with intervals: {told}.")
        left, right = 6.0, WIDTH - 6
        for i, one in enumerate(found):
            top = 46.0 * i
            axes.text(left, top + 13, _short(line(one.metric, 60), 18), weight="bold")
            told = f"{gain(one.value, one.low, one.high)}  ({span(one.low, one.high, signed=True)})"
            axes.text(right, top + 13, told, ha="right", color=_said(one))
            _strip(axes, one, y=top + 29, left=left, right=right)
        _sides(axes, y=46.0 * len(found) + 14, left=left, right=right)
    return figure


def comparison(metrics: Mapping[str, Sequence[Value]]) -> Figure:
    """The models' figures side by side, with their intervals, each metric on a scale of its own."""
    told = "; ".join(
        f"{m}: {', '.join(f'{NAMES[v.model]} {number(v.value)}' for v in vs)}" for m, vs in metrics.items()
    )
    height = sum(26 + 20 * len(values) for values in metrics.values()) + 4
    with style():
        figure, axes = canvas(WIDTH, height, f"Figures side by side. {told}.")
        left, right, top = 102.0, WIDTH - 62, 0.0
        for metric, values in metrics.items():
            ends = [end for v in values for end in (v.value, v.low, v.high) if end is not None]
            low, width = min(ends), (max(ends) - min(ends)) or 1.0
            axes.text(6, top + 14, _short(line(metric, 60), 34), weight="bold")
            for i, one in enumerate(values):
                y = top + 30 + 20 * i
                colour, marker = MODELS[one.model]
                axes.text(6, y, NAMES[one.model], color=SOFT, va="center")
                axes.text(WIDTH - 6, y, number(one.value), ha="right", va="center", color=colour, weight="bold")
                axes.plot([left, right], [y, y], color=LINE, linewidth=1)
                at = [left + (right - left) * (v - low) / width for v in (one.low, one.high) if v is not None]
                if len(at) == 2:
                    axes.plot(at, [y, y], color=colour, linewidth=3, solid_capstyle="butt")
                axes.plot(left + (right - left) * (one.value - low) / width, y, marker, color=colour, markersize=7)
            top += 26 + 20 * len(values)
    return figure


def slices(
    parts: Sequence[Part], *, overall: float | None = None, scale: tuple[float, float] | None = None, columns: int = 1
) -> Figure:
    """A metric of parts of the rows, in the order given, with intervals and the champion's figure.

    Args:
        parts: what is drawn.
        overall: the figure of all rows.
        scale: the ends of the axis; by default those of what is drawn.
        columns: in how many columns.
    """
    told = "; ".join(f"{p.name} {number(p.value)} of {plural(p.rows, 'row')}" for p in parts)
    rows = math.ceil(len(parts) / columns)
    head, row = 24.0, 38.0
    with style():
        figure, axes = canvas(WIDTH * columns, head + row * rows + 2, f"By slice, with intervals: {told}.")
        key = [("candidate", CANDIDATE, "o")]
        key += [("champion", CHAMPION, "D")] if any(p.champion is not None for p in parts) else []
        key += [("all rows", SOFT, "|")] if overall is not None else []
        _key(axes, 6, 13, key)
        for i, part in enumerate(parts):
            x = WIDTH * (i // rows)
            _part(axes, part, overall, scale=scale or reach(parts, overall), x=x, top=head + row * (i % rows))
    return figure


def reach(parts: Sequence[Part], overall: float | None) -> tuple[float, float]:
    """The smallest and the largest figure that slices are drawn with."""
    ends = [v for p in parts for v in (p.value, p.low, p.high, p.champion) if v is not None]
    ends += [overall] if overall is not None else []
    return min(ends), max(ends)


def _part(axes: Axes, part: Part, overall: float | None, *, scale: tuple[float, float], x: float, top: float) -> None:
    left, right, y = x + 10.0, x + WIDTH - 10.0, top + 25

    def at(value: float) -> float:
        return left + (right - left) * (value - scale[0]) / ((scale[1] - scale[0]) or 1.0)

    axes.text(left - 4, top + 13, _short(part.name, 32))
    axes.text(right + 4, top + 13, f"{number(part.value)} of {part.rows:,}", ha="right", color=SOFT)
    axes.plot([left, right], [y, y], color=LINE, linewidth=1)
    if overall is not None:
        axes.plot([at(overall)] * 2, [y - 6, y + 6], color=SOFT, linewidth=1.2)
    if part.low is not None and part.high is not None:
        axes.plot([at(part.low), at(part.high)], [y, y], color=CANDIDATE, linewidth=2.6, solid_capstyle="butt")
    axes.plot(at(part.value), y, "o", color=CANDIDATE, markersize=7)
    if part.champion is not None:
        axes.plot(at(part.champion), y, "D", color=CHAMPION, markerfacecolor=CARD, markersize=5, markeredgewidth=1.5)


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
    axes.set_title(_short(line(panel.title, 60), 22))
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


def _key(axes: Axes, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
    for name, colour, marker in entries:
        axes.plot(x + 4, y - 3.5, marker, color=colour, markersize=6, markerfacecolor=CARD if marker == "D" else colour)
        axes.text(x + 13, y, name, color=SOFT)
        x += 30 + 6 * len(name)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _said(one: Gain) -> str:
    return GOOD if one.low > 0 else BAD if one.high < 0 else SOFT


def _strip(axes: Axes, one: Gain, *, y: float, left: float, right: float) -> None:
    """An interval on a scale around zero; filled where it lies on one side, with what the gate asks for dashed."""
    half = (right - left) / 2
    scale = half / (1.1 * max(abs(one.low), abs(one.high), abs(one.value), abs(one.bar or 0)) or 1.0)
    low, value, high = (left + half + scale * v for v in (one.low, one.value, one.high))
    axes.plot([left, right], [y, y], color=LINE, linewidth=1)
    axes.plot([left + half] * 2, [y - 8, y + 8], color=INK, linewidth=1)
    if one.bar:
        axes.plot([left + half + scale * one.bar] * 2, [y - 8, y + 8], color=SOFT, linewidth=1.4, linestyle=(0, (2, 2)))
    colour = _said(one)
    axes.plot([low, high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
    face = CARD if colour == SOFT else colour
    axes.plot(value, y, "o", color=colour, markerfacecolor=face, markersize=8, markeredgewidth=1.6)


def _sides(axes: Axes, *, y: float, left: float, right: float) -> None:
    axes.text(left, y, "← worse", color=SOFT, fontsize=10)
    axes.text((left + right) / 2, y, "no difference", color=SOFT, ha="center", fontsize=10)
    axes.text(right, y, "better →", color=SOFT, ha="right", fontsize=10)

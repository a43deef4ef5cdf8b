"""Charts of metrics: gains with their intervals, models side by side, slices.

They have no axis of values: the text beside each mark says its value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.report.canvas import (
    BAD,
    BASE,
    CANDIDATE,
    CARD,
    CHAMPION,
    GOOD,
    INK,
    LINE,
    SOFT,
    WIDTH,
    figure_with_pixel_axes,
    short,
    style,
)
from tasks.report.formatting import interval, number, one_line, plural, signed_gain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = {"model": (CANDIDATE, "o"), "champion": (CHAMPION, "D"), "untrained": (BASE, "s")}
NAMES = {"model": "candidate", "champion": "champion", "untrained": "before training"}


@dataclass(frozen=True)
class GainBar:
    """A gain on the same rows, positive if the candidate is better, whatever the metric's direction."""

    metric: str
    value: float
    low: float
    high: float
    bar: float | None = None
    """What the gate demands `low` to be above, if this gain decides."""


@dataclass(frozen=True)
class ModelValue:
    """A metric of one model, with its interval if it has one."""

    model: str
    """`model`, `champion` or `untrained`."""
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SliceBar:
    """A metric of one slice, with its interval if it has enough rows, and the champion's value."""

    name: str
    rows: int
    value: float
    low: float | None = None
    high: float | None = None
    champion: float | None = None


def draw_gain(one: GainBar, *, against: str) -> Figure:
    """Draw one gain with its interval on a scale around zero, without text."""
    text = f"Gain in {one.metric} over the {against}: {signed_gain(one.value, one.low, one.high)}"
    with style():
        figure, axes = figure_with_pixel_axes(260, 44, f"{text}, interval {interval(one.low, one.high, signed=True)}.")
        _strip(axes, one, y=11, left=6, right=254)
        _sides(axes, y=38, left=6, right=254)
    return figure


def draw_gains(gains: Sequence[GainBar], *, against: str) -> Figure:
    """Draw the gains over one model with their intervals, each on its own scale around zero."""
    text = "; ".join(
        f"{g.metric} {signed_gain(g.value, g.low, g.high)} ({interval(g.low, g.high, signed=True)})" for g in gains
    )
    with style():
        figure, axes = figure_with_pixel_axes(
            WIDTH, 46 * len(gains) + 20, f"Gain over the {against}, with intervals: {text}."
        )
        left, right = 6.0, WIDTH - 6
        for i, one in enumerate(gains):
            top = 46.0 * i
            axes.text(left, top + 13, short(one_line(one.metric, 60), 18), weight="bold")
            text = f"{signed_gain(one.value, one.low, one.high)}  ({interval(one.low, one.high, signed=True)})"
            axes.text(right, top + 13, text, ha="right", color=_colour(one))
            _strip(axes, one, y=top + 29, left=left, right=right)
        _sides(axes, y=46.0 * len(gains) + 14, left=left, right=right)
    return figure


def draw_comparison(metrics: Mapping[str, Sequence[ModelValue]]) -> Figure:
    """Draw the models' metrics side by side with their intervals, each metric on its own scale."""
    text = "; ".join(
        f"{m}: {', '.join(f'{NAMES[v.model]} {number(v.value)}' for v in vs)}" for m, vs in metrics.items()
    )
    height = sum(26 + 20 * len(values) for values in metrics.values()) + 4
    with style():
        figure, axes = figure_with_pixel_axes(WIDTH, height, f"Metrics side by side. {text}.")
        left, right, top = 102.0, WIDTH - 62, 0.0
        for metric, values in metrics.items():
            ends = [end for v in values for end in (v.value, v.low, v.high) if end is not None]
            low, width = min(ends), (max(ends) - min(ends)) or 1.0
            axes.text(6, top + 14, short(one_line(metric, 60), 34), weight="bold")
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


def draw_slices(
    bars: Sequence[SliceBar],
    *,
    overall: float | None = None,
    scale: tuple[float, float] | None = None,
    columns: int = 1,
) -> Figure:
    """Draw a metric of slices in the given order, with intervals and the champion's values.

    `overall` is the value on all rows; `scale` is by default the range of what is drawn.
    """
    text = "; ".join(f"{p.name} {number(p.value)} of {plural(p.rows, 'row')}" for p in bars)
    rows = math.ceil(len(bars) / columns)
    head, row = 24.0, 38.0
    with style():
        figure, axes = figure_with_pixel_axes(
            WIDTH * columns, head + row * rows + 2, f"By slice, with intervals: {text}."
        )
        key = [("candidate", CANDIDATE, "o")]
        key += [("champion", CHAMPION, "D")] if any(p.champion is not None for p in bars) else []
        key += [("all rows", SOFT, "|")] if overall is not None else []
        _key(axes, 6, 13, key)
        for i, one in enumerate(bars):
            x = WIDTH * (i // rows)
            _slice(axes, one, overall, scale=scale or value_range(bars, overall), x=x, top=head + row * (i % rows))
    return figure


def value_range(bars: Sequence[SliceBar], overall: float | None) -> tuple[float, float]:
    """Return the smallest and the largest value that the bars show."""
    ends = [v for p in bars for v in (p.value, p.low, p.high, p.champion) if v is not None]
    ends += [overall] if overall is not None else []
    return min(ends), max(ends)


def _slice(
    axes: Axes, one: SliceBar, overall: float | None, *, scale: tuple[float, float], x: float, top: float
) -> None:
    left, right, y = x + 10.0, x + WIDTH - 10.0, top + 25

    def at(value: float) -> float:
        return left + (right - left) * (value - scale[0]) / ((scale[1] - scale[0]) or 1.0)

    axes.text(left - 4, top + 13, short(one.name, 32))
    axes.text(right + 4, top + 13, f"{number(one.value)} of {one.rows:,}", ha="right", color=SOFT)
    axes.plot([left, right], [y, y], color=LINE, linewidth=1)
    if overall is not None:
        axes.plot([at(overall)] * 2, [y - 6, y + 6], color=SOFT, linewidth=1.2)
    if one.low is not None and one.high is not None:
        axes.plot([at(one.low), at(one.high)], [y, y], color=CANDIDATE, linewidth=2.6, solid_capstyle="butt")
    axes.plot(at(one.value), y, "o", color=CANDIDATE, markersize=7)
    if one.champion is not None:
        axes.plot(at(one.champion), y, "D", color=CHAMPION, markerfacecolor=CARD, markersize=5, markeredgewidth=1.5)


def _key(axes: Axes, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
    for name, colour, marker in entries:
        axes.plot(x + 4, y - 3.5, marker, color=colour, markersize=6, markerfacecolor=CARD if marker == "D" else colour)
        axes.text(x + 13, y, name, color=SOFT)
        x += 30 + 6 * len(name)


def _colour(one: GainBar) -> str:
    return GOOD if one.low > 0 else BAD if one.high < 0 else SOFT


def _strip(axes: Axes, one: GainBar, *, y: float, left: float, right: float) -> None:
    """Draw an interval on a scale around zero; its mark is filled if it excludes zero, and the gate's bar is dashed."""
    half = (right - left) / 2
    scale = half / (1.1 * max(abs(one.low), abs(one.high), abs(one.value), abs(one.bar or 0)) or 1.0)
    low, value, high = (left + half + scale * v for v in (one.low, one.value, one.high))
    axes.plot([left, right], [y, y], color=LINE, linewidth=1)
    axes.plot([left + half] * 2, [y - 8, y + 8], color=INK, linewidth=1)
    if one.bar:
        axes.plot([left + half + scale * one.bar] * 2, [y - 8, y + 8], color=SOFT, linewidth=1.4, linestyle=(0, (2, 2)))
    colour = _colour(one)
    axes.plot([low, high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
    face = CARD if colour == SOFT else colour
    axes.plot(value, y, "o", color=colour, markerfacecolor=face, markersize=8, markeredgewidth=1.6)


def _sides(axes: Axes, *, y: float, left: float, right: float) -> None:
    axes.text(left, y, "← worse", color=SOFT, fontsize=10)
    axes.text((left + right) / 2, y, "no difference", color=SOFT, ha="center", fontsize=10)
    axes.text(right, y, "better →", color=SOFT, ha="right", fontsize=10)

"""The kinds of charts that compare, from plain figures to drawings: gains, models side by side, slices.

They have no axis of figures: what is drawn also stands beside it, to as many digits as its interval leaves it.
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
    WIDTH,
    canvas,
    short,
    style,
)
from tasks.report.wording import gain, line, number, plural, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
            axes.text(left, top + 13, short(line(one.metric, 60), 18), weight="bold")
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
            axes.text(6, top + 14, short(line(metric, 60), 34), weight="bold")
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

    axes.text(left - 4, top + 13, short(part.name, 32))
    axes.text(right + 4, top + 13, f"{number(part.value)} of {part.rows:,}", ha="right", color=SOFT)
    axes.plot([left, right], [y, y], color=LINE, linewidth=1)
    if overall is not None:
        axes.plot([at(overall)] * 2, [y - 6, y + 6], color=SOFT, linewidth=1.2)
    if part.low is not None and part.high is not None:
        axes.plot([at(part.low), at(part.high)], [y, y], color=CANDIDATE, linewidth=2.6, solid_capstyle="butt")
    axes.plot(at(part.value), y, "o", color=CANDIDATE, markersize=7)
    if part.champion is not None:
        axes.plot(at(part.champion), y, "D", color=CHAMPION, markerfacecolor=CARD, markersize=5, markeredgewidth=1.5)


def _key(axes: Axes, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
    for name, colour, marker in entries:
        axes.plot(x + 4, y - 3.5, marker, color=colour, markersize=6, markerfacecolor=CARD if marker == "D" else colour)
        axes.text(x + 13, y, name, color=SOFT)
        x += 30 + 6 * len(name)


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

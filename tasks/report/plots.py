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

WIDTH = 360.0
"""Of a chart, in pixels."""
MAX_POINTS = 400
MAX_SLICES = 20
_LOG_FROM = 50.0
"""A curve whose largest figure is so many times its smallest is drawn on a logarithmic axis."""
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


def gains(found: Sequence[Gain], *, against: str) -> Figure:
    """Differences from one model with their intervals, each on a scale of its own around zero."""
    told = "; ".join(f"{g.metric} {gain(g.value, g.low, g.high)} ({span(g.low, g.high, signed=True)})" for g in found)
    with style():
        figure, axes = canvas(WIDTH, 46 * len(found) + 22, f"Gain over the {against}, 95% intervals: {told}.")
        left, right = 8.0, WIDTH - 8
        for i, one in enumerate(found):
            top = 46.0 * i
            reach = 1.08 * max(abs(one.low), abs(one.high), abs(one.value), abs(one.bar or 0)) or 1.0
            x = [(left + right) / 2 + (right - left) / 2 * v / reach for v in (one.low, one.value, one.high)]
            colour = GOOD if one.low > 0 else BAD if one.high < 0 else SOFT
            axes.text(left, top + 13, line(one.metric, 26), weight="bold")
            told = f"{gain(one.value, one.low, one.high)}  ({span(one.low, one.high, signed=True)})"
            axes.text(right, top + 13, told, ha="right", color=colour)
            axes.plot([left, right], [top + 28] * 2, color=LINE, linewidth=1)
            axes.plot([(left + right) / 2] * 2, [top + 20, top + 36], color=INK, linewidth=1)
            if one.bar:
                at = (left + right) / 2 + (right - left) / 2 * one.bar / reach
                axes.plot([at] * 2, [top + 20, top + 36], color=SOFT, linewidth=1, linestyle=(0, (2, 2)))
            axes.plot([x[0], x[2]], [top + 28] * 2, color=colour, linewidth=3, solid_capstyle="butt")
            filled = colour if colour != SOFT else CARD
            axes.plot(x[1], top + 28, "o", color=colour, markerfacecolor=filled, markersize=8, markeredgewidth=1.6)
        foot = 46.0 * len(found) + 13
        axes.text(left, foot, "← worse", color=SOFT)
        axes.text(WIDTH / 2, foot, "no difference", color=SOFT, ha="center")
        axes.text(right, foot, "better →", color=SOFT, ha="right")
    return figure


def comparison(metrics: Mapping[str, Sequence[Value]]) -> Figure:
    """The models' figures side by side, with their intervals, each metric on a scale of its own."""
    told = "; ".join(
        f"{m}: {', '.join(f'{NAMES[v.model]} {number(v.value)}' for v in vs)}" for m, vs in metrics.items()
    )
    height = sum(26 + 20 * len(values) for values in metrics.values()) + 4
    with style():
        figure, axes = canvas(WIDTH, height, f"Figures side by side. {told}.")
        left, right, top = 112.0, WIDTH - 64, 0.0
        for metric, values in metrics.items():
            ends = [end for v in values for end in (v.value, v.low, v.high) if end is not None]
            low, width = min(ends), (max(ends) - min(ends)) or 1.0
            axes.text(8, top + 14, line(metric, 40), weight="bold")
            for i, one in enumerate(values):
                y = top + 30 + 20 * i
                colour, marker = MODELS[one.model]
                axes.text(8, y, NAMES[one.model], color=SOFT, va="center")
                axes.text(WIDTH - 8, y, number(one.value), ha="right", va="center", color=colour, weight="bold")
                axes.plot([left, right], [y, y], color=LINE, linewidth=1)
                at = [left + (right - left) * (v - low) / width for v in (one.low, one.high) if v is not None]
                if len(at) == 2:
                    axes.plot(at, [y, y], color=colour, linewidth=3, solid_capstyle="butt")
                axes.plot(left + (right - left) * (one.value - low) / width, y, marker, color=colour, markersize=7)
            top += 26 + 20 * len(values)
    return figure


def slices(parts: Sequence[Part], *, metric: str, overall: float | None) -> Figure:
    """A metric of up to 20 parts of the rows, in the order given, with intervals and the champion's figure."""
    parts = parts[:MAX_SLICES]
    told = "; ".join(f"{p.name} {number(p.value)} of {plural(p.rows, 'row')}" for p in parts)
    ends = [v for p in parts for v in (p.value, p.low, p.high, p.champion) if v is not None]
    ends += [overall] if overall is not None else []
    low, width = min(ends), (max(ends) - min(ends)) or 1.0
    left, right, row, head = 148.0, WIDTH - 10, 21.0, 44.0
    has_champion = any(p.champion is not None for p in parts)

    def at(value: float) -> float:
        return left + (right - left) * (value - low) / width

    with style():
        height = head + row * len(parts) + 6
        figure, axes = canvas(WIDTH, height, f"{metric} by slice, 95% intervals: {told}.")
        _key(axes, 8, 12, [("candidate", CANDIDATE, "o")] + [("champion", CHAMPION, "D")] * has_champion)
        if overall is not None:
            axes.plot([at(overall)] * 2, [head - 8, height - 4], color=SOFT, linewidth=1, linestyle=(0, (3, 3)))
            where = min(max(at(overall), left + 40), right - 40)
            axes.text(where, head - 13, f"all rows {number(overall)}", ha="center", color=SOFT)
        for i, part in enumerate(parts):
            y = head + row * (i + 0.5)
            axes.text(left - 12, y, _short(part.name, 25), ha="right", va="center", fontsize=9)
            axes.plot([left, right], [y, y], color=LINE, linewidth=0.8)
            if part.low is not None and part.high is not None:
                axes.plot([at(part.low), at(part.high)], [y, y], color=CANDIDATE, linewidth=2.4, solid_capstyle="butt")
            axes.plot(at(part.value), y, "o", color=CANDIDATE, markersize=6.5)
            if part.champion is not None:
                style_of = {"color": CHAMPION, "markerfacecolor": CARD, "markeredgewidth": 1.4}
                axes.plot(at(part.champion), y, "D", markersize=5, **style_of)  # type: ignore[arg-type]
    return figure


def calibration(bins: Sequence[Bin]) -> Figure:
    """A reliability diagram: the accuracy of rows by the model's confidence, and how many rows there are of each."""
    from matplotlib.ticker import FuncFormatter

    total = sum(one.rows for one in bins)
    told = "; ".join(f"confidence {percent(b.confidence)}, right {percent(b.accuracy)}" for b in bins)
    with style():
        figure = sheet(WIDTH, 330, f"Accuracy by confidence: {told}.")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        figure.subplots_adjust(left=0.13, right=0.975, top=0.93, bottom=0.125, hspace=0.16)
        upper.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (3, 3)))
        upper.annotate("as sure as right", (0.02, 0.06), color=SOFT, rotation=0, va="bottom")
        for one in bins:
            upper.plot([one.confidence] * 2, [one.confidence, one.accuracy], color=LINE, linewidth=3)
        upper.plot([b.confidence for b in bins], [b.accuracy for b in bins], "o-", color=CANDIDATE, markersize=6)
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
            axes = figure.add_axes(((46 + WIDTH * i) / (WIDTH * len(found)), 0.17, 304 / (WIDTH * len(found)), 0.70))
            _curve(axes, panel)
    return figure


def durations(found: Mapping[str, float]) -> Figure:
    """Seconds by stage, as bars."""
    told = ", ".join(f"{stage} {seconds(value)}" for stage, value in found.items())
    longest = max(found.values()) or 1.0
    with style():
        figure, axes = canvas(WIDTH, 26 * len(found) + 4, f"Time by stage: {told}.")
        left, right = 74.0, WIDTH - 84
        for i, (stage, value) in enumerate(found.items()):
            y = 26.0 * i + 15
            axes.text(8, y, stage, va="center")
            axes.barh(y, right - left, height=10, left=left, color=LINE, linewidth=0)
            axes.barh(y, (right - left) * value / longest, height=10, left=left, color=CANDIDATE, linewidth=0)
            axes.text(WIDTH - 8, y, seconds(value), ha="right", va="center", color=SOFT)
    return figure


def _told(panel: Panel) -> str:
    last = [f"{name} {number(curve[-1][1])}" for name, curve in _lines(panel) if curve]
    best = f"; best weights at step {number(panel.best_step)}" if panel.best_step is not None else ""
    return f"{panel.title} over the training, at its end: {', '.join(last)}{best}."


def _lines(panel: Panel) -> list[tuple[str, Sequence[tuple[float, float]]]]:
    return [("training", panel.train), ("validation", panel.validation)]


def _curve(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    figures = [value for _, curve in _lines(panel) for _, value in curve]
    if min(figures) > 0 and max(figures) / min(figures) > _LOG_FROM:
        axes.set_yscale("log")
    axes.set_title(line(panel.title, 30))
    if panel.best_step is not None:
        axes.axvline(panel.best_step, color=SOFT, linewidth=1, linestyle=(0, (3, 3)))
    if panel.train:
        thinned = _thin(panel.train)
        axes.plot(*zip(*thinned, strict=True), color=SOFT, linewidth=1.2, label="training")
    if panel.validation:
        thinned = _thin(panel.validation)
        marker = "o" if len(thinned) <= 40 else ""
        axes.plot(*zip(*thinned, strict=True), color=CANDIDATE, marker=marker, markersize=3.5, label="validation")
    at_best = [value for step, value in panel.validation if step == panel.best_step]
    if at_best and panel.best_step is not None:
        axes.plot(panel.best_step, at_best[-1], "o", color=CANDIDATE, markerfacecolor=CARD, markersize=8)
        late = panel.best_step > max(step for _, curve in _lines(panel) for step, _ in curve) / 2
        axes.annotate(
            f"best {number(at_best[-1])}",
            (panel.best_step, at_best[-1]),
            (-9 if late else 9, 9 if _rises(panel.validation) is False else -15),
            textcoords="offset points",
            ha="right" if late else "left",
            weight="bold",
        )
    axes.set_xlabel("optimizer step")
    axes.xaxis.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if panel.train and panel.validation:
        axes.legend(loc="best")


def _rises(curve: Sequence[tuple[float, float]]) -> bool:
    return curve[-1][1] > curve[0][1]


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

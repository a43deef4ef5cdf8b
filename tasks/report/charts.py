"""Charts: gains with their intervals, models side by side, slices, the reliability diagram, and curves of training.

Only the last two have axes of values: in the others, the text beside each mark says its value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.evaluation.report import MetricComparison, SliceResult
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
    empty_figure,
    figure_with_pixel_axes,
    shorten_label,
    use_report_style,
)
from tasks.report.formatting import (
    count_with_noun,
    format_interval,
    format_number,
    format_one_line,
    format_signed_gain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Mapping[str, tuple[float, float | None, float | None]]
"""A metric of the models by name, each with the ends of its interval, if it has one."""
MODELS = {"model": (CANDIDATE, "o"), "champion": (CHAMPION, "D"), "untrained": (BASE, "s")}
NAMES = {"model": "candidate", "champion": "champion", "untrained": "before training"}
MAX_POINTS = 400
_LOG_FROM, _LOG_ABOVE = 50.0, 20.0
"""The axis is logarithmic if the largest value is above the second number and this many times the smallest."""
_FEW_POINTS = 40


def draw_gain(one: MetricComparison, *, against: str, bar: float | None = None) -> Figure:
    """Draw one gain with its interval on a scale around zero, without text.

    `bar`: what the gate demands the lower end to be above.
    """
    gain, ends = _texts(one)
    with use_report_style():
        figure, axes = figure_with_pixel_axes(
            260, 44, f"Gain in {one.metric} over the {against}: {gain}, interval {ends}."
        )
        _strip(axes, one, bar, y=11, left=6, right=254)
        _sides(axes, y=38, left=6, right=254)
    return figure


def draw_gains(gains: Sequence[MetricComparison], *, against: str, bars: Mapping[str, float]) -> Figure:
    """Draw the gains over one model with their intervals, each on its own scale around zero; `bars` as in `draw_gain`, by metric."""
    text = "; ".join("{} {} ({})".format(one.metric, *_texts(one)) for one in gains)
    with use_report_style():
        figure, axes = figure_with_pixel_axes(
            WIDTH, 46 * len(gains) + 20, f"Gain over the {against}, with intervals: {text}."
        )
        left, right = 6.0, WIDTH - 6
        for i, one in enumerate(gains):
            top = 46.0 * i
            axes.text(left, top + 13, shorten_label(format_one_line(one.metric, 60), 18), weight="bold")
            axes.text(right, top + 13, "{}  ({})".format(*_texts(one)), ha="right", color=_colour(one))
            _strip(axes, one, bars.get(one.metric), y=top + 29, left=left, right=right)
        _sides(axes, y=46.0 * len(gains) + 14, left=left, right=right)
    return figure


def draw_comparison(metrics: Mapping[str, Values]) -> Figure:
    """Draw the models' metrics side by side with their intervals, each metric on its own scale."""
    text = "; ".join(
        f"{metric}: {', '.join(f'{NAMES[model]} {format_number(value)}' for model, (value, _, _) in values.items())}"
        for metric, values in metrics.items()
    )
    height = sum(26 + 20 * len(values) for values in metrics.values()) + 4
    with use_report_style():
        figure, axes = figure_with_pixel_axes(WIDTH, height, f"Metrics side by side. {text}.")
        left, right, top = 102.0, WIDTH - 62, 0.0
        for metric, values in metrics.items():
            shown = [end for ends in values.values() for end in ends if end is not None]
            low, width = min(shown), (max(shown) - min(shown)) or 1.0
            axes.text(6, top + 14, shorten_label(format_one_line(metric, 60), 34), weight="bold")
            for i, (model, (value, *ends)) in enumerate(values.items()):
                y = top + 30 + 20 * i
                colour, marker = MODELS[model]
                axes.text(6, y, NAMES[model], color=SOFT, va="center")
                axes.text(WIDTH - 6, y, format_number(value), ha="right", va="center", color=colour, weight="bold")
                axes.plot([left, right], [y, y], color=LINE, linewidth=1)
                at = [left + (right - left) * (end - low) / width for end in ends if end is not None]
                if len(at) == 2:
                    axes.plot(at, [y, y], color=colour, linewidth=3, solid_capstyle="butt")
                axes.plot(left + (right - left) * (value - low) / width, y, marker, color=colour, markersize=7)
            top += 26 + 20 * len(values)
    return figure


def draw_slices(
    slices: Sequence[SliceResult],
    *,
    overall: float | None = None,
    scale: tuple[float, float] | None = None,
    columns: int = 1,
) -> Figure:
    """Draw a metric of slices in the given order, with intervals and the champion's values.

    `overall` is the value on all rows; `scale` is by default the range of what is drawn.
    """
    text = "; ".join(f"{one.slice} {format_number(one.value)} of {count_with_noun(one.rows, 'row')}" for one in slices)
    rows = math.ceil(len(slices) / columns)
    head, row = 24.0, 38.0
    with use_report_style():
        figure, axes = figure_with_pixel_axes(
            WIDTH * columns, head + row * rows + 2, f"By slice, with intervals: {text}."
        )
        key = [("candidate", CANDIDATE, "o")]
        key += [("champion", CHAMPION, "D")] if any(one.champion is not None for one in slices) else []
        key += [("all rows", SOFT, "|")] if overall is not None else []
        x = 6.0
        for name, colour, marker in key:
            face = CARD if marker == "D" else colour
            axes.plot(x + 4, 13 - 3.5, marker, color=colour, markersize=6, markerfacecolor=face)
            axes.text(x + 13, 13, name, color=SOFT)
            x += 30 + 6 * len(name)
        for i, one in enumerate(slices):
            x = WIDTH * (i // rows)
            _slice(
                axes, one, overall, scale=scale or slice_value_range(slices, overall), x=x, top=head + row * (i % rows)
            )
    return figure


def slice_value_range(slices: Sequence[SliceResult], overall: float | None) -> tuple[float, float]:
    """Return the smallest and the largest value that a chart of slices shows."""
    shown = [overall, *(end for one in slices for end in (one.value, one.low, one.high, one.champion))]
    known = [value for value in shown if value is not None]
    return min(known), max(known)


def _slice(
    axes: Axes, one: SliceResult, overall: float | None, *, scale: tuple[float, float], x: float, top: float
) -> None:
    left, right, y = x + 10.0, x + WIDTH - 10.0, top + 25

    def at(value: float) -> float:
        return left + (right - left) * (value - scale[0]) / ((scale[1] - scale[0]) or 1.0)

    axes.text(left - 4, top + 13, shorten_label(one.slice, 32))
    axes.text(right + 4, top + 13, f"{format_number(one.value)} of {one.rows:,}", ha="right", color=SOFT)
    axes.plot([left, right], [y, y], color=LINE, linewidth=1)
    if overall is not None:
        axes.plot([at(overall)] * 2, [y - 6, y + 6], color=SOFT, linewidth=1.2)
    if one.low is not None and one.high is not None:
        axes.plot([at(one.low), at(one.high)], [y, y], color=CANDIDATE, linewidth=2.6, solid_capstyle="butt")
    axes.plot(at(one.value), y, "o", color=CANDIDATE, markersize=7)
    if one.champion is not None:
        axes.plot(at(one.champion), y, "D", color=CHAMPION, markerfacecolor=CARD, markersize=5, markeredgewidth=1.5)


def _texts(one: MetricComparison) -> tuple[str, str]:
    return format_signed_gain(one.gain, one.low, one.high), format_interval(one.low, one.high, signed=True)


def _colour(one: MetricComparison) -> str:
    return GOOD if one.low > 0 else BAD if one.high < 0 else SOFT


def _strip(axes: Axes, one: MetricComparison, bar: float | None, *, y: float, left: float, right: float) -> None:
    """Draw an interval on a scale around zero; its mark is filled if it excludes zero, and the gate's bar is dashed."""
    half = (right - left) / 2
    scale = half / (1.1 * max(abs(one.low), abs(one.high), abs(one.gain), abs(bar or 0)) or 1.0)
    low, value, high = (left + half + scale * end for end in (one.low, one.gain, one.high))
    axes.plot([left, right], [y, y], color=LINE, linewidth=1)
    axes.plot([left + half] * 2, [y - 8, y + 8], color=INK, linewidth=1)
    if bar:
        axes.plot([left + half + scale * bar] * 2, [y - 8, y + 8], color=SOFT, linewidth=1.4, linestyle=(0, (2, 2)))
    colour = _colour(one)
    axes.plot([low, high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
    face = CARD if colour == SOFT else colour
    axes.plot(value, y, "o", color=colour, markerfacecolor=face, markersize=8, markeredgewidth=1.6)


def _sides(axes: Axes, *, y: float, left: float, right: float) -> None:
    axes.text(left, y, "← worse", color=SOFT, fontsize=10)
    axes.text((left + right) / 2, y, "no difference", color=SOFT, ha="center", fontsize=10)
    axes.text(right, y, "better →", color=SOFT, ha="right", fontsize=10)


@dataclass(frozen=True)
class MetricCurves:
    title: str
    train: Sequence[tuple[float, float]] = ()
    """Steps and values."""
    validation: Sequence[tuple[float, float]] = ()
    best_step: float | None = None
    """The step whose weights were kept."""


def draw_curves(panels: Sequence[MetricCurves]) -> Figure:
    """Draw panels side by side; the step whose weights were kept is marked."""
    with use_report_style():
        figure = empty_figure(WIDTH * len(panels), 230, " ".join(_description(panel) for panel in panels))
        for i, panel in enumerate(panels):
            axes = figure.add_axes(
                ((44 + WIDTH * i) / (WIDTH * len(panels)), 0.17, (WIDTH - 54) / (WIDTH * len(panels)), 0.72)
            )
            _curve(axes, panel)
    return figure


def _description(panel: MetricCurves) -> str:
    lines = [("training", panel.train), ("validation", panel.validation)]
    last = [f"{name} {format_number(curve[-1][1])}" for name, curve in lines if curve]
    best = f"; best weights at step {format_number(panel.best_step)}" if panel.best_step is not None else ""
    return f"{panel.title} over the training; final values: {', '.join(last)}{best}."


def _curve(axes: Axes, panel: MetricCurves) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    if _spans_magnitudes([value for _, value in (*panel.train, *panel.validation)]):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(shorten_label(format_one_line(panel.title, 60), 22))
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
        axes.set_title(f"kept: {format_number(best[-1][1])}", loc="right", color=CANDIDATE, fontsize=11)
    axes.set_xlabel("optimizer step")
    axes.xaxis.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if panel.train and panel.validation:
        axes.legend(loc="best")


def _spans_magnitudes(values: Sequence[float]) -> bool:
    """Whether only a logarithmic axis shows both the small and the large ones of some values."""
    least, most = min(values), max(values)
    return least > 0 and most > _LOG_ABOVE and most / least > _LOG_FROM


def _thin(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most MAX_POINTS points, each the mean of the same number of neighbours."""
    size = math.ceil(len(curve) / MAX_POINTS)
    if size <= 1:
        return list(curve)
    groups = [curve[i : i + size] for i in range(0, len(curve), size)]
    return [(sum(s for s, _ in g) / len(g), sum(v for _, v in g) / len(g)) for g in groups]

"""The metric that decides over time: every candidate with its interval, and the champion of its day."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tasks.history.run_log import DecidingMetric, RunEntry
from tasks.report.canvas import BAD, CANDIDATE, CARD, CHAMPION, LINE, SOFT, empty_figure, use_report_style
from tasks.report.formatting import count_with_noun, format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 1040.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 10.0, 12.0, 26.0
_FENCE = 3.0
"""A value further outside of the middle half of all values than this many times its width is drawn at the chart's edge."""
_DAY_S = 86_400.0
_MANY = 120
"""With more runs than this, dots are smaller and intervals thinner."""

_Line = tuple[float, float, float]
"""A vertical line: the day, and its ends; a line of no length is a dot."""
Judged = Sequence[tuple[RunEntry, DecidingMetric]]
"""Runs whose candidate has a value of one metric."""


def runs_with_deciding_metric(runs: Sequence[RunEntry]) -> tuple[str | None, Judged]:
    """Return the metric that decided about the newest candidate, and the runs whose candidate has a value of it."""
    metric = next((run.evaluated.metric for run in reversed(runs) if run.evaluated), None)
    found = [(run, run.evaluated) for run in runs if run.evaluated and run.evaluated.metric == metric]
    return metric, [(run, one) for run, one in found if one.value is not None]


def draw_metric_history(runs: Sequence[RunEntry]) -> Figure:
    """Draw the candidates' values over time, the champion's as a line, and runs without a candidate as ticks at the bottom."""
    metric, found = runs_with_deciding_metric(runs)
    failed = [run.started for run in runs if run.outcome in {"failed", "crashed", "cancelled", "budget spent"}]
    low, high = axis_range(found)
    first, last = runs[0].started, runs[-1].started
    margin = max((last - first) * 0.02, timedelta(hours=1))
    with use_report_style():
        figure = empty_figure(_WIDTH, _HEIGHT, _description(metric, found, len(failed)))
        size = ((_WIDTH - _LEFT - _RIGHT) / _WIDTH, (_HEIGHT - _TOP - _BOTTOM) / _HEIGHT)
        axes = figure.add_axes((_LEFT / _WIDTH, _BOTTOM / _HEIGHT, *size))
        axes.set_xlim(_days(first - margin), _days(last + margin))
        axes.set_ylim(low, high)
        champions = [(_days(run.started), one.champion) for run, one in found if one.champion is not None]
        if champions:  # between two runs, the champion is the one that the later run met
            marker = "D" if len(champions) == 1 else ""
            days, levels = zip(*champions, strict=True)
            axes.plot(days, levels, color=CHAMPION, linewidth=1.6, drawstyle="steps-pre", marker=marker, markersize=5)
        _candidates(axes, found, low, high)
        _lines(axes, [(_days(time), low, low + 0.05 * (high - low)) for time in failed], BAD, 2.0)
        _label_axes(axes, last - first)
    return figure


def _candidates(axes: Axes, found: Judged, low: float, high: float) -> None:
    is_many = len(found) > _MANY
    size, edge = 5.0 if is_many else 8.0, 0.025 * (high - low)
    dots: dict[str, list[_Line]] = {"published": [], "other": [], "refused": []}
    intervals: list[_Line] = []
    for run, one in found:
        day, value = _days(run.started), min(max(one.value or 0.0, low + edge), high - edge)
        if one.low is not None and one.high is not None:
            intervals.append((day, one.low, one.high))
        dots[run.outcome if run.outcome in dots else "other"].append((day, value, value))
    _lines(axes, intervals, CANDIDATE, 0.8 if is_many else 1.6)
    _lines(axes, dots["other"], CANDIDATE, size)
    _lines(axes, dots["other"], CARD, size - 2.6)
    _lines(axes, dots["refused"], BAD, size)
    _lines(axes, dots["published"], CANDIDATE, size + 1)


def _lines(axes: Axes, lines: Sequence[_Line], colour: str, width: float) -> None:
    """Draw lines as one path, which stays small for thousands of runs."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if lines:
        vertices = [(day, end) for day, *ends in lines for end in ends]
        path = Path(vertices, [Path.MOVETO, Path.LINETO] * len(lines))
        path.should_simplify = False
        patch = PathPatch(path, fill=False, edgecolor=colour, linewidth=width, capstyle="round", zorder=3, clip_on=True)
        axes.add_patch(patch)


def axis_range(evaluated: Judged) -> tuple[float, float]:
    """Return the ends of the chart's axis: all values and intervals, without refused ones and those far outside of most."""
    found = [one for run, one in evaluated if run.outcome != "refused"] or [one for _, one in evaluated]
    values = _given(value for one in found for value in (one.value, one.champion))
    ends = values + _given(value for one in found for value in (one.low, one.high))
    lowest, highest = _fence(values)
    inside = [value for value in ends if lowest <= value <= highest]
    low, high = min(inside), max(inside)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _given(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _fence(values: Sequence[float]) -> tuple[float, float]:
    """Return between which values most are (Tukey's fences); everything, if they are few or mostly equal."""
    if len(values) >= 8:
        lower, _, upper = statistics.quantiles(values, n=4)
        if upper > lower:
            return lower - _FENCE * (upper - lower), upper + _FENCE * (upper - lower)
    return -math.inf, math.inf


def _label_axes(axes: Axes, span: timedelta) -> None:
    from matplotlib.dates import AutoDateLocator
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    pattern = "%H:%M" if span < timedelta(days=2) else "%-d %b" if span < timedelta(days=300) else "%b %Y"
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=2, maxticks=9))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda day, _: datetime.fromtimestamp(day * _DAY_S, UTC).strftime(pattern))
    )
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.xaxis.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=SOFT)


def _description(metric: str | None, found: Judged, failed: int) -> str:
    (first, one), (last, other) = found[0], found[-1]
    text = f"{metric} of {count_with_noun(len(found), 'candidate')}"
    text += f" from {first.started:%Y-%m-%d} ({format_number(one.value)}) to {last.started:%Y-%m-%d} ({format_number(other.value)})"
    if other.champion is not None:
        text += f", the champion's last value {format_number(other.champion)}"
    return f"{text}; {count_with_noun(failed, 'run')} without a candidate."


def _days(time: datetime) -> float:
    """Return a time as the axis has it: in days since 1970."""
    return time.timestamp() / _DAY_S

"""Charts of a classifier's labels: precision by recall for each, and which ones are mixed up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.measurements.labels.report import LabelCurve
from tasks.report import canvas
from tasks.report.formatting import format_number, format_one_line, format_percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 2
_PANEL = 112.0
"""Height of the curve of a label, in pixels."""
_LEFT = 96.0
"""Pixels of the names beside a matrix."""
_MAX_COUNTED = 8
"""Most labels of a matrix whose cells have their numbers."""


def draw_label_curves(curves: Sequence[LabelCurve]) -> Figure:
    """Draw precision by recall, in a panel for each label, with the average precision."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    text = "; ".join(f"{format_one_line(one.label, 60)} {format_number(one.average_precision)}" for one in curves)
    lines = math.ceil(len(curves) / _COLUMNS)
    with canvas.use_report_style():
        figure = canvas.empty_figure(
            canvas.WIDTH, _PANEL * lines + 24, f"Precision by recall of each label, with average precision: {text}."
        )
        grid = figure.subplots(lines, min(_COLUMNS, len(curves)), sharex=True, sharey=True, squeeze=False)
        height = _PANEL * lines + 24
        figure.subplots_adjust(left=0.12, right=0.97, top=1 - 22 / height, bottom=36 / height, hspace=0.42, wspace=0.14)
        panels = [axes for row in grid for axes in row]
        for axes in panels[len(curves) :]:
            axes.set_axis_off()
        for axes, one in zip(panels, curves, strict=False):
            axes.plot([0, *one.recall], [one.precision[0], *one.precision], color=canvas.CANDIDATE)
            name = canvas.shorten_label(format_one_line(one.label, 60), 12)
            axes.set_title(f"{name} {format_number(one.average_precision)}", fontsize=10)
            axes.set(xlim=(0, 1), ylim=(0, 1.03))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MultipleLocator(0.5))
                axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}"))
        for axes in grid[-1]:
            axes.set_xlabel("recall in %")
    return figure


def draw_confusion_matrix(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> Figure:
    """Draw how many rows with each label (a line) are predicted as each one (a column); darker for larger shares of its line."""
    size, cell = len(names), (canvas.WIDTH - _LEFT - 6) / len(names)
    right = sum(matrix[i][i] for i in range(size)) / max(1, sum(map(sum, matrix)))
    with canvas.use_report_style():
        height = 40 + cell * size + 6
        told = f"Rows by their label and the predicted one, of {size} labels; {format_percent(right)} are right."
        figure, axes = canvas.figure_with_pixel_axes(canvas.WIDTH, height, told)
        axes.text(_LEFT, 13, "predicted, in the same order", color=canvas.SOFT, fontsize=10)
        for i, (name, row) in enumerate(zip(names, matrix, strict=True)):
            top, total = 24 + cell * i, max(1, sum(row))
            axes.text(_LEFT - 6, top + cell / 2, _shown(name), ha="right", va="center", fontsize=10)
            for j, count in enumerate(row):
                left, colour = _LEFT + cell * j, canvas.CANDIDATE if i == j else canvas.BAD
                corners = [(left, top), (left + cell, top), (left + cell, top + cell), (left, top + cell)]
                axes.fill(
                    *zip(*corners, strict=True), facecolor=colour, alpha=round(0.75 * count / total, 2), linewidth=0
                )
                axes.plot(*zip(*corners, corners[0], strict=True), color=canvas.LINE, linewidth=0.8)
                if size <= _MAX_COUNTED:
                    axes.text(
                        left + cell / 2,
                        top + cell / 2,
                        f"{count:,}",
                        ha="center",
                        va="center",
                        color=canvas.INK,
                        fontsize=9,
                    )
    return figure


def _shown(name: str) -> str:
    return canvas.shorten_label(format_one_line(name, 60), 14)

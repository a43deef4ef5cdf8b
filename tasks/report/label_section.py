"""The section of the report page about the labels of a classifier: a table, what is mixed up, and a curve of each."""

from __future__ import annotations

from math import isfinite
from typing import Any

from tasks.evaluation.label_report import LabelReport
from tasks.report.canvas import chart_as_svg
from tasks.report.label_charts import draw_confusion_matrix, draw_label_curves
from tasks.report.run_results import RunResults

_MAX_CURVES = 40


def label_section_content(results: RunResults) -> dict[str, Any] | None:
    """Return the results of the labels, those with the most rows first; None for an objective without labels."""
    labels = results.details.labels if results.details else None
    if labels is None or not labels.results:
        return None
    judged = [one for one in labels.results if one.low is not None]
    gains = [one for one in judged if one.gain_low is not None and one.gain_high is not None]
    return {
        "all": labels.results,
        "worst": min(judged or labels.results, key=lambda one: (one.f1, one.label)),
        "better": sum((one.gain_low or 0) > 0 for one in gains),
        "worse": sum((one.gain_high or 0) < 0 for one in gains),
        "judged": len(gains),
        "has_champion": any(one.champion is not None for one in labels.results),
        "confusions": labels.confusions,
        "charts": _charts(labels),
        "left_out": max(0, len(labels.curves) - _MAX_CURVES),
    }


def _charts(labels: LabelReport) -> list[tuple[str, str]]:
    charts = []
    if labels.matrix:
        drawn = chart_as_svg(draw_confusion_matrix, labels.names, labels.matrix)
        charts = [("Rows by their label and the predicted one", drawn)]
    order = {one.label: place for place, one in enumerate(labels.results)}
    curves = [one for one in labels.curves if all(map(isfinite, (*one.recall, *one.precision)))]
    curves = sorted(curves, key=lambda one: order.get(one.label, len(order)))[:_MAX_CURVES]
    half = max(6, (len(curves) + 3) // 4 * 2)
    parts = (curves[i : i + half] for i in range(0, len(curves), half))
    title = "Precision in % by recall, with average precision"
    return charts + [(title, chart_as_svg(draw_label_curves, part)) for part in parts]

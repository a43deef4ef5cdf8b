"""Labels: what a classifier does on each, its floors, and its section of the page."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

from tasks.measurement import Measurement, PageSection
from tasks.measurements.labels.charts import draw_confusion_matrix, draw_label_curves
from tasks.measurements.labels.report import LabelReport
from tasks.multiple_tests import holm_rejections
from tasks.report.canvas import chart_as_svg
from tasks.report.templates import render_template
from tasks.stages import Report

if TYPE_CHECKING:
    from params.sections.evaluation import Gate
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.report import EvaluationDetails
    from tasks.report.run_results import RunResults

_MAX_CURVES = 40


class LabelFindings(Report):
    labels: LabelReport | None = None
    """None in a report of an earlier version, and for an objective without labels."""


class Labels(Measurement[LabelFindings]):
    """Precision, recall and F1 of each label, what is mixed up, and curves."""

    kind = LabelFindings
    place = 10

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> LabelFindings:
        from tasks.measurements.labels.results import report_labels

        plan, scores = analysis.plan, analysis.scored["model"].scores
        found = report_labels(plan.resampler, scores, analysis.common(written=True), plan.settings.gate)
        return LabelFindings(labels=found)

    def refusals(self, found: LabelFindings, gate: Gate) -> Iterator[str]:
        results = found.labels.results if found.labels else ()
        tested = [(one, *test) for one in results for test in one.floor_p_values.items()]
        rejected = holm_rejections([p_value for *_, p_value in tested], 1 - gate.confidence)
        for (one, metric, _), is_rejected in zip(tested, rejected, strict=True):
            floors = gate.label_floors[metric]  # type: ignore[index]
            if is_rejected:
                floor = floors[one.label] if isinstance(floors, dict) else floors
                value = getattr(one, metric)
                yield f"{metric} {value:.4g} of the label {one.label!r} ({one.rows} rows) misses {floor:.4g}, its floor"

    def page_section(self, found: LabelFindings, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        if found.labels is None or not found.labels.results:
            return None
        content = _content(found.labels) | {"champion_rows": results.fewer_champion_rows}
        sent = {"labels": content, "confidence": results.confidence}
        return PageSection("labels", "Labels", render_template("measurements/labels/section.html.jinja", sent))


def _content(labels: LabelReport) -> dict[str, Any]:
    """Return what the page shows, the labels with the most rows first."""
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
    titled = []
    if labels.matrix:
        drawn = chart_as_svg(draw_confusion_matrix, labels.names, labels.matrix)
        titled = [("Rows by their label and the predicted one", drawn)]
    order = {one.label: place for place, one in enumerate(labels.results)}
    curves = [one for one in labels.curves if all(map(isfinite, (*one.recall, *one.precision)))]
    curves = sorted(curves, key=lambda one: order.get(one.label, len(order)))[:_MAX_CURVES]
    half = max(6, (len(curves) + 3) // 4 * 2)
    parts = (curves[i : i + half] for i in range(0, len(curves), half))
    title = "Precision in % by recall, with average precision"
    return titled + [(title, chart_as_svg(draw_label_curves, part)) for part in parts]

"""Calibration: how often the model is right, by its confidence."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from tasks.measurement import CardChart, Measurement, PageSection
from tasks.measurements.calibration.chart import draw_calibration
from tasks.report.canvas import chart_as_png, chart_as_svg
from tasks.report.templates import render_template
from tasks.stages import Number, Report
from trainer.objectives.bases.metrics.calibration import describe_bins

if TYPE_CHECKING:
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.report import EvaluationDetails
    from tasks.report.run_results import RunResults


class CalibrationBins(Report):
    calibration: list[dict[str, Number]] | None = None
    """For each bin of confidence: the mean `confidence`, the `accuracy` and the number of `rows`."""

    @property
    def filled(self) -> list[dict[str, float]]:
        bins = self.calibration or ()
        return [one for one in bins if one.get("rows") and isfinite(one["confidence"]) and isfinite(one["accuracy"])]


class Calibration(Measurement[CalibrationBins]):
    """The rows in bins of confidence, for objectives that say how sure a model is."""

    kind = CalibrationBins
    place = 80
    card_chart = CardChart("calibration.png", "How often the model is right, by its confidence")

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> CalibrationBins:
        resampler = analysis.plan.resampler
        totals = resampler.totals(analysis.scored["model"].scores)
        sums = resampler.objective.sums(totals, resampler.state)
        bins = describe_bins(sums["calibration"]) if "calibration" in sums else []
        return CalibrationBins(calibration=bins or None)

    def page_section(self, found: CalibrationBins, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        bins = found.filled
        if not bins:
            return None
        differences = [one["rows"] * (one["confidence"] - one["accuracy"]) for one in bins]
        content = {
            "error": 100 * sum(map(abs, differences)) / sum(one["rows"] for one in bins),
            "excess": sum(differences),
            "chart": chart_as_svg(draw_calibration, bins),
            "bins": bins,
        }
        html = render_template("measurements/calibration/section.html.jinja", content)
        return PageSection("calibration", "Calibration", html)

    def draw_card_chart(self, found: CalibrationBins) -> bytes | None:
        return chart_as_png(draw_calibration, found.filled) if found.filled else None

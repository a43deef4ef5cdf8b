"""The rows with the largest error: wrong labels are often among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.measurement import Measurement, PageSection
from tasks.report.templates import render_template
from tasks.stages import Number, Report
from trainer.objectives.bases.lazy_imports import np

if TYPE_CHECKING:
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.report import EvaluationDetails
    from tasks.report.run_results import RunResults

_MAX_SHOWN = 100


class WorstRow(Report):
    row_id: int
    text: str
    row_error: Number
    """The error, in the unit of the objective's first score."""
    notes: dict[str, str]


class WorstRowsFindings(Report):
    worst: Sequence[WorstRow] = ()


class WorstRows(Measurement[WorstRowsFindings]):
    """As many as `evaluation.worst_rows` asks for, the largest error first."""

    kind = WorstRowsFindings
    place = 50

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> WorstRowsFindings:
        scores = analysis.scored["model"].scores
        errors = analysis.plan.resampler.objective.row_error(scores.columns)
        positions = np.argsort(-errors, kind="stable")[: analysis.plan.settings.worst_rows].tolist()
        ids = scores.row_ids[positions].tolist()
        found = [
            WorstRow(row_id=row_id, text=text, row_error=float(errors[at]), notes=analysis.notes(scores, at))
            for row_id, text, at in zip(ids, analysis.texts(ids), positions, strict=True)
        ]
        return WorstRowsFindings(worst=found)

    def page_section(self, found: WorstRowsFindings, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        if not (found.worst and quote_rows):
            return None
        content = {"rows": found.worst[:_MAX_SHOWN]}
        return PageSection(
            "worst", "Worst rows", render_template("measurements/worst_rows/section.html.jinja", content)
        )

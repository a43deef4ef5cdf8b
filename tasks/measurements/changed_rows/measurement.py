"""The rows on which candidate and champion differ most, in either direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.measurement import Measurement, PageSection
from tasks.report.markdown import render_markdown
from tasks.report.templates import render_template
from tasks.stages import Number, Report
from trainer.objectives.bases.lazy_imports import NDArray, np
from trainer.objectives.bases.metrics.metric import names_where

if TYPE_CHECKING:
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.report import EvaluationDetails
    from tasks.evaluation.scoring import RowScores
    from tasks.report.run_results import RunResults

_MAX_SHOWN = 100
_MAX_ON_CARD = 5


class DifferingRow(Report):
    """A row on which candidate and champion differ."""

    row_id: int
    text: str
    gain: Number
    """The champion's error minus the candidate's: positive where the candidate is better."""
    error: Number
    """The candidate's, in the unit of `WorstRow.row_error`; per byte of text if the models read other tokens."""
    champion_error: Number
    notes: dict[str, str]
    """What the candidate's scores say, such as its prediction."""
    champion_notes: dict[str, str]


class ChangedRowsFindings(Report):
    changed: Sequence[DifferingRow] = ()
    """Those that differ most first; empty in a report of an earlier version."""


class ChangedRows(Measurement[ChangedRowsFindings]):
    """As many as `evaluation.worst_rows` asks for, where the two models' errors can be compared."""

    kind = ChangedRowsFindings
    place = 70

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> ChangedRowsFindings:
        common = analysis.common(written=not analysis.plan.can_compare("loss"))
        if common is None:
            return ChangedRowsFindings()
        own, other = common
        errors, champion_errors = _comparable_errors(analysis, own), _comparable_errors(analysis, other)
        if errors is None or champion_errors is None:
            return ChangedRowsFindings()
        gains = champion_errors - errors
        ordered = np.argsort(-np.abs(gains), kind="stable")[: analysis.plan.settings.worst_rows].tolist()
        positions = [position for position in ordered if gains[position] != 0]
        ids = own.row_ids[positions].tolist()
        found = [
            DifferingRow(
                row_id=row_id,
                text=text,
                gain=float(gains[at]),
                error=float(errors[at]),
                champion_error=float(champion_errors[at]),
                notes=analysis.notes(own, at),
                champion_notes=analysis.notes(other, at),
            )
            for row_id, text, at in zip(ids, analysis.texts(ids), positions, strict=True)
        ]
        return ChangedRowsFindings(changed=found)

    def page_section(self, found: ChangedRowsFindings, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        if not (found.changed and quote_rows):
            return None
        content = {"rows": found.changed[:_MAX_SHOWN]}
        html = render_template("measurements/changed_rows/section.html.jinja", content)
        return PageSection("changed", "Changed rows", html)

    def card_section(self, found: ChangedRowsFindings, *, is_private: bool) -> str:
        if not (found.changed and is_private):
            return ""
        return render_markdown("measurements/changed_rows/card.md.jinja", rows=found.changed[:_MAX_ON_CARD])


def _comparable_errors(analysis: EvaluationAnalysis, scores: RowScores) -> NDArray[np.float64] | None:
    """Each row's error, (N,): as for the worst rows; for other tokens per byte of text, or None if that is unknown."""
    plan = analysis.plan
    objective = plan.resampler.objective
    if plan.can_compare("loss"):
        return objective.row_error(scores.columns)
    restated = names_where(objective.metrics, "restated")
    if "bytes" not in scores.columns or not all(map(plan.can_compare, restated)):
        return None
    return scores.columns["nll"] / np.maximum(scores.columns["bytes"], 1)

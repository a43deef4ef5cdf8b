"""A first release must know something of its rows: it is compared with itself, with the inputs of other rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.evaluation.gate import comparison_sentence, gain_passes_bar
from tasks.evaluation.report import MetricComparison
from tasks.measurement import Measurement
from tasks.stages import Report

if TYPE_CHECKING:
    from params.sections.evaluation import Gate
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.plan import EvaluationPlan, PlannedModel
    from tasks.evaluation.report import EvaluationDetails
    from tasks.evaluation.scoring import RowScores
    from trainer.objectives.bases.lazy_imports import PreTrainedModel


class OtherRowsFindings(Report):
    other_rows: MetricComparison | None = None
    """The metric that decides, compared with that of the same model with the inputs of other rows; None if nobody asked."""


class OtherRows(Measurement[OtherRowsFindings]):
    """Asked of a first release, unless the recipe compares nothing."""

    kind = OtherRowsFindings

    def __init__(self) -> None:
        self._scores: RowScores | None = None

    def look(self, plan: EvaluationPlan, model: PlannedModel, network: PreTrainedModel, scores: RowScores) -> None:
        from tasks.measurements.other_rows.pairing import score_with_other_inputs

        if model.name == "model" and plan.settings.compare_untrained and plan.published.champion is None:
            self._scores = score_with_other_inputs(plan, network, model)

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> OtherRowsFindings:
        if self._scores is None:
            return OtherRowsFindings()
        return OtherRowsFindings(other_rows=analysis.compare_with_other_rows(self._scores))

    def refusals_of_first_release(self, found: OtherRowsFindings, gate: Gate) -> Iterator[str]:
        if found.other_rows and not gain_passes_bar(found.other_rows, gate):
            told = comparison_sentence(found.other_rows, gate)
            yield f"a first release must know something of its rows, and this one answers others as well: {told}"

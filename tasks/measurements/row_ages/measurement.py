"""The ages of held-out rows: what a candidate has forgotten of those that the champion knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tasks.evaluation.gate import fallen_slices
from tasks.evaluation.report import SliceResult
from tasks.measurement import Measurement
from tasks.stages import Report
from trainer.objectives.bases.lazy_imports import np

if TYPE_CHECKING:
    from params.sections.evaluation import Gate
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.report import EvaluationDetails


class AgeFindings(Report):
    ages: Sequence[SliceResult] = ()
    """The rows that the champion's release had, and those that came since."""
    ages_unknown: str = ""
    """Why they could not be told apart."""


class Ages(Measurement[AgeFindings]):
    """What a candidate has forgotten of the rows that the champion knows."""

    kind = AgeFindings
    place = 30

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> AgeFindings:
        from tasks.measurements.row_ages.ages import KNOWN, tell_ages

        told, margins = tell_ages(analysis.plan), {KNOWN: analysis.plan.settings.gate.known_margin}
        ids = analysis.scored["model"].scores.row_ids
        found = {name: np.flatnonzero(np.isin(ids, of_age)) for name, of_age in told.of.items()}
        each = (("age", name, at, margins.get(name)) for name, at in found.items() if len(at))
        return AgeFindings(ages=list(analysis.deciding_of_slices(each)), ages_unknown=told.reason)

    def slices(self, found: AgeFindings) -> Sequence[SliceResult]:
        return found.ages

    def losses(self, found: AgeFindings, gate: Gate) -> Iterator[str]:
        forgotten = f"more than {gate.known_margin or 0:.4g}: it has forgotten what the champion knows"
        for fall in fallen_slices(gate, found.ages, lambda one: f"the {one.slice}"):
            yield f"{fall}, {forgotten}"
        if gate.known_margin is not None and all(one.margin_p_value is None for one in found.ages):
            why, fix = found.ages_unknown, "leave out `known_margin` for one release, which will have what is missing"
            if not why:
                why = f"fewer than {gate.min_slice_rows} known rows are compared"
                fix = "hold out more rows (`data.split`), or leave out `known_margin`"
            yield f"`known_margin` cannot be judged: {why}; {fix}"

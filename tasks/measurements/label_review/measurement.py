"""Labels that look wrong: the report's section about them, and review.csv for people."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from params.foundation.artifacts import Artifacts, write_text_atomically
from tasks.measurement import Measurement, PageSection
from tasks.measurements.drift.measurement import DriftOfModel
from tasks.measurements.label_review.report import SuspectReport
from tasks.report.templates import render_template
from tasks.stages import Report

if TYPE_CHECKING:
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.plan import EvaluationPlan, PlannedModel
    from tasks.evaluation.report import EvaluationDetails
    from tasks.evaluation.scoring import RowScores
    from tasks.measurements.label_review.cross_fitting import TrainFeatures
    from tasks.report.run_results import RunResults
    from trainer.objectives.bases.lazy_imports import PreTrainedModel

logger = logging.getLogger(__name__)


class Suspects(Report):
    suspects: SuspectReport | None = None
    """None in a report of an earlier version, and for an objective that gives whole rows no labels."""


class LabelReview(Measurement[Suspects]):
    """What of the evaluated split and of the train split looks wrong."""

    kind = Suspects
    place = 60

    def __init__(self) -> None:
        self._train: TrainFeatures | None = None
        self._table = ""

    def look(self, plan: EvaluationPlan, model: PlannedModel, network: PreTrainedModel, scores: RowScores) -> None:
        from tasks.measurements.label_review.review import measure_train_rows

        if model.name == "untrained":
            self._train = measure_train_rows(plan, network)

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> Suspects:
        from tasks.measurements.label_review.review import measure_train_rows, review_labels

        plan, scored = analysis.plan, analysis.scored
        if not plan.settings.compare_untrained:
            self._train = measure_train_rows(plan)
        champion = scored["champion"].scores if "champion" in scored else None
        confidence = earlier.findings(DriftOfModel).champion_confidence
        unsure = confidence.unsure if confidence else ()
        review = review_labels(plan, scored["model"].scores, self._train, champion, unsure)
        self._table = review.table
        return Suspects(suspects=review.report)

    def finish(self, artifacts: Artifacts, found: Suspects) -> None:
        write_text_atomically(artifacts.review, self._table)
        for line in self.run_lines(found, artifacts):
            logger.info("evaluate: %s", line)

    def run_lines(self, found: Suspects, artifacts: Artifacts) -> list[str]:
        return [f"{found.suspects.sentence}: {artifacts.review}"] if found.suspects else []

    def page_section(self, found: Suspects, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        if found.suspects is None:
            return None
        content = {"found": found.suspects, "quote_rows": quote_rows}
        html = render_template("measurements/label_review/section.html.jinja", content)
        return PageSection("suspects", "Suspect labels", html)

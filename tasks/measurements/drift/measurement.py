"""Drift: whether the new rows are like those that the published model learned from.

validate compares the rows, evaluate how sure the champion is of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.measurement import Measurement, RowFindings, ValidatedRows
from tasks.measurements.drift.report import ChampionConfidence, DriftReport
from tasks.report.run_results import RunResults
from tasks.report.templates import render_template
from tasks.stages import Report, ReportWithFindings, read_report
from tasks.validation.report import ValidationReport, shorten_value

if TYPE_CHECKING:
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.plan import EvaluationPlan, PlannedModel
    from tasks.evaluation.report import EvaluationDetails
    from tasks.evaluation.scoring import RowScores
    from trainer.objectives.bases.lazy_imports import PreTrainedModel

_FIX = (
    "if these rows are as they should be, let one run learn from them with `validation.drift: report`: the next"
    " release knows them; else remove them from the data. "
)


class DriftOfRows(Report):
    """What validate has found."""

    drift: DriftReport | None = None
    """How the new rows compare with those of the published model; None if the recipe turns that off."""


class DriftOfModel(Report):
    """What evaluate has found."""

    champion_confidence: ChampionConfidence | None = None
    """None in a report of an earlier version."""


class Drift(Measurement[DriftOfModel]):
    """How the new rows of the train split differ, and how sure the champion is of them."""

    kind = DriftOfModel
    place = 45
    history_column = "drift"

    def __init__(self) -> None:
        self._confidence: ChampionConfidence | None = None

    def measure_rows(self, validated: ValidatedRows) -> RowFindings:
        from tasks.measurements.drift.new_rows import write_profile_and_measure_drift

        settings = validated.validation.drift
        found = write_profile_and_measure_drift(
            validated.artifacts,
            validated.folder,
            validated.workers,
            drift=settings,
            objective=validated.objective,
            seed=validated.seed,
            repo_id=validated.repo_id,
            endpoint=validated.endpoint,
        )
        stops = found.sentence if found and found.moved and settings.on_drift == "fail" else ""
        return RowFindings(DriftOfRows(drift=found), stops=stops, fix=_FIX)

    def validation_section(self, report: ReportWithFindings) -> str:
        drift = report.findings(DriftOfRows).drift
        content = {"drift": drift, "shorten": shorten_value}
        return render_template("measurements/drift/validation.html.jinja", content) if drift else ""

    def look(self, plan: EvaluationPlan, model: PlannedModel, network: PreTrainedModel, scores: RowScores) -> None:
        from tasks.measurements.drift.confidence import measure_champion_confidence
        from tasks.shards.split_rows import SplitRows

        drift, reason = _find_new_rows(plan)
        if model.name == "champion" and drift and not reason:
            self._confidence = measure_champion_confidence(
                network,
                model.reader.encoder(plan.text.limit, plan.resampler.state),
                drift,
                scores,
                train=SplitRows(plan.rows.folder.parent / "train"),
                batch_size=plan.batch_size,
                split=plan.settings.split,
                seed=plan.resampler.seed,
            )

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> DriftOfModel:
        _, reason = _find_new_rows(analysis.plan)
        return DriftOfModel(champion_confidence=self._confidence or ChampionConfidence(reason=reason))

    def sentences(self, found: DriftOfModel) -> Iterator[str]:
        if found.champion_confidence:
            yield found.champion_confidence.sentence

    def data_block(self, results: RunResults, *, quote_rows: bool) -> str:
        drift, sure = _found_in(results.validated, results.details)
        if not (drift or sure):
            return ""
        told = [drift.sentence if drift else "", sure.sentence if sure else "", drift.left_out if drift else ""]
        changes = list(drift.changes) if drift else []
        if sure and sure.change:
            changes.append(sure.change)
        examples = drift.examples if drift and quote_rows else ()
        content = {"sentences": list(filter(None, told)), "changes": changes, "examples": examples}
        return render_template("measurements/drift/page.html.jinja", content)

    def card_sentences(self, results: RunResults) -> list[str]:
        return [one.sentence for one in _found_in(results.validated, results.details) if one]

    def history_cell(self, validated: ReportWithFindings | None, details: ReportWithFindings | None) -> str | None:
        drift, confidence = _found_in(validated, details)
        words = list(drift.moved) if drift else []
        if confidence and confidence.is_less_sure:
            words.append("confidence")
        return ", ".join(words) or (drift.word if drift else None)


def _found_in(
    validated: ReportWithFindings | None, details: ReportWithFindings | None
) -> tuple[DriftReport | None, ChampionConfidence | None]:
    drift = validated.findings(DriftOfRows).drift if validated else None
    return drift, details.findings(DriftOfModel).champion_confidence if details else None


def _find_new_rows(plan: EvaluationPlan) -> tuple[DriftReport | None, str]:
    """Return what names the new rows on which the champion's confidence is measured, and why it is not; empty if it is."""
    from tasks.measurements.drift.confidence import why_confidence_not_comparable

    has_report = plan.artifacts.report("validate").exists()
    drift = read_report(plan.artifacts, ValidationReport).findings(DriftOfRows).drift if has_report else None
    reason = why_confidence_not_comparable(plan.resampler.objective, drift, plan.published)
    if not plan.compares_with_champion:
        reason = reason or "the published model has learned from all held-out rows"
    return drift, reason

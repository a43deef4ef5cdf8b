"""Rows that a model must get right to be published (`evaluation.suites`): what the gate, the blessing and the page make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from params.foundation.artifacts import SUITES, Artifacts
from tasks.measurement import Measurement, PageSection, RowFindings, ValidatedRows
from tasks.measurements.suites.report import SuiteResult
from tasks.report.templates import render_template
from tasks.stages import Report

if TYPE_CHECKING:
    from params.sections.evaluation import Gate
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.plan import EvaluationPlan, PlannedModel
    from tasks.evaluation.report import EvaluationDetails
    from tasks.report.run_results import RunResults
    from trainer.objectives.bases.lazy_imports import PreTrainedModel


class SuiteResults(Report):
    """What the candidate makes of the suites."""

    suites: Sequence[SuiteResult] = ()


class SuiteRows(Report):
    """The rows of the suites that validate has copied."""

    suites: Mapping[str, str] = {}
    """A hash of the rows of each suite, by its name."""


class Suites(Measurement[SuiteResults]):
    """The candidate reads each row as it is published, and must get enough of them right."""

    kind = SuiteResults
    place = 40

    def __init__(self) -> None:
        self._results: Sequence[SuiteResult] = ()

    def measure_rows(self, validated: ValidatedRows) -> RowFindings:
        from tasks.measurements.suites.rows import copy_suites

        return RowFindings(SuiteRows(suites=copy_suites(validated)))

    def look(self, plan: EvaluationPlan, model: PlannedModel, network: PreTrainedModel, scores: Any) -> None:
        from tasks.measurements.suites.judging import judge_suites

        if model.name == "model":
            self._results = judge_suites(plan, network)

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> SuiteResults:
        return SuiteResults(suites=self._results)

    def sentences(self, found: SuiteResults) -> Iterator[str]:
        return (one.sentence for one in found.suites)

    def refusals(self, found: SuiteResults, gate: Gate) -> Iterator[str]:
        return (one.sentence for one in found.suites if not one.is_passed)

    def rows_judged(self, found: SuiteResults) -> Mapping[str, str]:
        return {one.name: one.sha256 for one in found.suites}

    def rows_read(self, artifacts: Artifacts) -> Mapping[str, str]:
        from trainer.data.shards import folder_sha256

        folder = artifacts.rows / SUITES
        return {own.name: folder_sha256(own) for own in sorted(folder.iterdir())} if folder.exists() else {}

    def page_section(self, found: SuiteResults, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        if not found.suites:
            return None
        content = {"suites": found.suites, "quote_rows": quote_rows}
        return PageSection("suites", "Suites", render_template("measurements/suites/section.html.jinja", content))

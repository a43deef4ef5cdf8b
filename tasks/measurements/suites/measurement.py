"""Rows that a model must get right to be published (`evaluation.suites`): what the gate, the blessing and the page make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from params.foundation.artifacts import SUITES, Artifacts
from tasks.measurement import Measurement, PageSection
from tasks.report.templates import render_template
from tasks.stages import Report
from trainer.data.shards import folder_sha256

if TYPE_CHECKING:
    from params.sections.evaluation import Gate
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.plan import EvaluationPlan, PlannedModel
    from tasks.evaluation.report import EvaluationDetails
    from tasks.report.run_results import RunResults
    from trainer.objectives.bases.lazy_imports import PreTrainedModel

_NAMED = 5
"""Rows that the sentence names."""


class FailedRow(Report):
    """A row of a suite that the candidate does not get right."""

    row_id: int
    """Its place in the suite, from 0."""
    text: str
    notes: dict[str, str]
    """What was expected, and what the model says."""


class SuiteResult(Report):
    """How many rows of a suite the candidate gets right."""

    name: str
    rows: int
    right: int
    share: float
    """The smallest share of rows that must be right."""
    sha256: str
    """Hash of the rows."""
    failures: list[FailedRow]

    @property
    def is_passed(self) -> bool:
        """Whether enough rows are right."""
        return self.right / self.rows >= self.share  # 0.28 * 25 is more than 7

    @property
    def sentence(self) -> str:
        """Return, for example, `suite greetings: 8 of 10 rows are right, and all must be; wrong: rows 3 and 7`."""
        must = "all must be" if self.share == 1 else f"{self.share:.4g} of them must be"
        text = f"suite {self.name}: {self.right} of {self.rows} rows are right, and {must}"
        ids = [str(one.row_id) for one in self.failures[:_NAMED]]
        more = f" and {len(self.failures) - _NAMED} more" if len(self.failures) > _NAMED else ""
        return f"{text}; wrong: row_id {', '.join(ids)}{more}" if ids else text


class SuiteResults(Report):
    """What the candidate makes of the suites."""

    suites: Sequence[SuiteResult] = ()


class Suites(Measurement[SuiteResults]):
    """The candidate reads each row as it is published, and must get enough of them right."""

    kind = SuiteResults
    place = 40

    def __init__(self) -> None:
        self._results: Sequence[SuiteResult] = ()

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

    def rows_read(self, artifacts: Artifacts) -> Mapping[str, str]:
        folder = artifacts.rows / SUITES
        return {own.name: folder_sha256(own) for own in sorted(folder.iterdir())} if folder.exists() else {}

    def page_section(self, found: SuiteResults, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        if not found.suites:
            return None
        content = {"suites": found.suites, "quote_rows": quote_rows}
        return PageSection("suites", "Suites", render_template("measurements/suites/section.html.jinja", content))

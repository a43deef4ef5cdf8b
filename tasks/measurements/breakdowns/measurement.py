"""Groups of rows that the objective names, and the means of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.measurement import Measurement, PageSection
from tasks.measurements.breakdowns.groups import Breakdown, report_breakdowns
from tasks.report.templates import render_template
from tasks.stages import Report

if TYPE_CHECKING:
    from tasks.evaluation.analysis import EvaluationAnalysis
    from tasks.evaluation.report import EvaluationDetails
    from tasks.report.run_results import RunResults


class GroupsOfRows(Report):
    breakdowns: Sequence[Breakdown] = ()
    """Empty in a report of an earlier version."""


class Breakdowns(Measurement[GroupsOfRows]):
    """Such as tenths of the true number."""

    kind = GroupsOfRows
    place = 20

    def measure(self, analysis: EvaluationAnalysis, earlier: EvaluationDetails) -> GroupsOfRows:
        champion = analysis.scored.get("champion")
        found = report_breakdowns(
            analysis.plan.resampler.objective, analysis.scored["model"].scores, champion.scores if champion else None
        )
        return GroupsOfRows(breakdowns=found)

    def page_section(self, found: GroupsOfRows, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        if not found.breakdowns:
            return None
        content = {"breakdowns": found.breakdowns}
        html = render_template("measurements/breakdowns/section.html.jinja", content)
        return PageSection("groups", "Groups of rows", html)

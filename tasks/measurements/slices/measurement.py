"""The section of the page about slices: the gate itself judges them, and the analysis of the scores measures them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.measurement import Measurement, PageSection
from tasks.report.sections import slices_section_content
from tasks.report.templates import render_template
from tasks.stages import Report

if TYPE_CHECKING:
    from tasks.report.run_results import RunResults


class NoFindings(Report):
    """What it shows is in the details of the evaluation."""


class Slices(Measurement[NoFindings]):
    """Those of the recipe, and those of other measurements, such as rows by age; the worst first."""

    kind = NoFindings
    place = 30

    def page_section(self, found: NoFindings, results: RunResults, *, quote_rows: bool) -> PageSection | None:
        slices = slices_section_content(results)
        if slices is None:
            return None
        content = {"slices": slices, "results": results}
        return PageSection("slices", "Slices", render_template("measurements/slices/section.html.jinja", content))

"""The HTML page made from the report of the validate stage."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.measurement import list_measurements
from tasks.templates import escape_direction_characters, make_environment
from tasks.validation.report import ValidationReport, shorten_value

if TYPE_CHECKING:
    import jinja2


@dataclass(frozen=True)
class ShownRow:
    """A row on the page, with shortened values."""

    row_id: int
    split: str
    reasons: Sequence[str]
    values: Sequence[tuple[str, str]]


def render_validation_page(
    report: ValidationReport, *, recipe: str, failures: Sequence[str], rows: Sequence[ShownRow], failing: int
) -> str:
    """Return the page: one HTML file with escaped text that loads nothing.

    `failing` counts the rows that are not shown, too.
    """
    page = _environment().get_template("validation/page.html.jinja")
    sections = [one.validation_section(report) for one in list_measurements()]
    content = page.render(
        report=report, recipe=recipe, failures=failures, rows=rows, failing=failing, sections=filter(None, sections)
    )
    return escape_direction_characters(content)


@functools.cache
def _environment() -> jinja2.Environment:
    return make_environment({"shorten": shorten_value})

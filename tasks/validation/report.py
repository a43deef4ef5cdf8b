"""What validation tells people: the report, and the page made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar, Literal

import pydantic

from params.schema import Expectation
from tasks.stages import Report

Origin = Literal["objective", "objective, on the rows left", "recipe"]


class Example(pydantic.BaseModel):
    """A failing row."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    row_id: int
    split: str
    value: str
    """What the check looked at, shortened."""


class Check(pydantic.BaseModel):
    """One expectation and what it found."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    type: str
    arguments: dict[str, Any]
    on_failure: Literal["quarantine", "fail", "report"]
    origin: Origin
    """Who demanded it."""
    success: bool
    unexpected_count: int | None
    """Failing rows; of equal rows, those after the first. None for a check of the table as a whole."""
    observed: Any = None
    """The figure that a check of the whole table looked at."""
    examples: list[Example] = []

    @property
    def stops(self) -> bool:
        """Whether it ended the stage: also where rows should be set aside and the check names none."""
        rowless = self.unexpected_count is None and self.on_failure == "quarantine"
        return not self.success and (self.on_failure == "fail" or rowless)


class ValidationReport(Report):
    """What validation found and did."""

    saved_as: ClassVar[str] = "validate"
    rows_in: dict[str, int]
    """Rows of each split as they came."""
    rows_out: dict[str, int]
    """Rows of each split that passed."""
    quarantined: int
    """Rows set aside, over all splits."""
    share: float
    """`quarantined` as a share of all rows."""
    max_quarantined: float
    """The recipe's limit of `share`."""
    checks: list[Check]


@dataclass(frozen=True)
class ShownRow:
    """A row on the page, all of its values shortened."""

    row_id: int
    split: str
    reasons: Sequence[str]
    values: Sequence[tuple[str, str]]


def shorten(value: object, limit: int) -> str:
    """A value on one line: text in quotes, what cannot be seen in it escaped, and the rest of a long one left out."""
    if isinstance(value, str):
        seen = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value[:limit])
        return f"'{seen}'" if len(value) <= limit else f"'{seen}…"
    text = "null" if value is None else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def describe(expectation: Expectation | Check, limit: int = 80) -> str:
    """An expectation as a call, for example `expect_column_values_to_be_unique(column='text')`."""
    return f"{expectation.type}({', '.join(f'{k}={shorten(v, limit)}' for k, v in expectation.arguments.items())})"


def render(
    report: ValidationReport, *, recipe: str, failures: Sequence[str], rows: Sequence[ShownRow], at_fault: int
) -> str:
    """The page: one HTML file that loads nothing, made of escaped text.

    Args:
        report: the figures.
        recipe: its name, for the title.
        failures: why the stage ended, empty if it did not.
        rows: failing rows to show.
        at_fault: how many failing rows there are.
    """
    import jinja2

    # autoescape by name would miss this template's suffix
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shorten"] = shorten
    template = environment.from_string(files("tasks.validation").joinpath("report.html.jinja").read_text("utf-8"))
    return template.render(report=report, recipe=recipe, failures=failures, rows=rows, at_fault=at_fault) + "\n"

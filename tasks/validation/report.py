"""The report of the validate stage."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pydantic

from params.sections.rows import Expectation
from tasks.stages import Report, ReportWithFindings

Origin = Literal["objective", "objective, on the remaining rows", "recipe"]
"""Where a check comes from; reports of earlier versions say of some that they were run again, on the remaining rows."""


class FailingRow(Report):
    row_id: int
    split: str
    value: str


class CheckReport(Report):
    type: str
    arguments: dict[str, Any]
    on_failure: Literal["quarantine", "fail", "report"]
    origin: Origin
    success: bool
    unexpected_count: int | None
    """Number of failing rows; of equal rows, the first does not count. None for a check of the table as a whole."""
    observed: Any = None
    examples: list[FailingRow] = pydantic.Field(default_factory=list)

    @property
    def stops(self) -> bool:
        """Whether it ended the stage. A failed check of the table does, because it names no rows to set aside."""
        names_no_rows = self.unexpected_count is None and self.on_failure == "quarantine"
        return not self.success and (self.on_failure == "fail" or names_no_rows)

    @property
    def told(self) -> str:
        """Return, for example, `row_is_usable: 3, such as row 7 of test: message 2, of the assistant, is empty`; other checks say it by their name."""
        count = f"{self.type}: {self.unexpected_count:,}"
        if self.type != "row_is_usable" or not self.examples:
            return count
        first = self.examples[0]
        return f"{count}, such as row {first.row_id} of {first.split}: {first.value}"


class CorpusReport(Report):
    """What the rows of `data.corpus` are."""

    rows: int
    documents: int
    """Different texts."""
    blank: int

    @property
    def sentence(self) -> str:
        """Return, for example, `data.corpus has 998 documents; of its 1000 rows, 1 are blank and 1 repeat others`."""
        repeated = self.rows - self.blank - self.documents
        return f"data.corpus has {self.documents} documents; of its {self.rows} rows, {self.blank} are blank and {repeated} repeat others"


class CorrectionsReport(Report):
    """What the rows of `data.corrections` changed."""

    corrections: int
    changed: dict[str, int]
    """Rows of each split with another label than the source has."""
    unmatched: list[str]
    """The `row_hash` of the corrections that match no row."""
    drawn: int = 0
    """Corrections of rows that review.csv had drawn at random, those with a right label included."""
    drawn_wrong: int = 0
    """How many of these had a wrong label."""
    given: dict[str, int] = pydantic.Field(default_factory=dict)
    """Rows by a label that a correction gives them, and that none of the corrected rows has in the source."""

    @property
    def sentence(self) -> str:
        """Return, for example, `data.corrections: 41 corrections give 40 train, 3 test rows another label; 2 match no row: ...`."""
        rows = ", ".join(f"{count:,} {split}" for split, count in self.changed.items() if count) or "no"
        text = f"data.corrections: {self.corrections:,} corrections give {rows} rows another label"
        more = f" and {len(self.unmatched) - 3} more" if len(self.unmatched) > 3 else ""
        lost = f"; {len(self.unmatched):,} match no row: {', '.join(self.unmatched[:3])}{more}"
        drawn = (
            f"; of {self.drawn:,} rows drawn at random, {self.drawn_wrong:,} had a wrong label" if self.drawn else ""
        )
        return text + drawn + (lost if self.unmatched else "")


class ValidationReport(ReportWithFindings):
    """What the validate stage found and did."""

    saved_as: ClassVar[str] = "validate"
    rows_in: dict[str, int]
    rows_out: dict[str, int]
    quarantined: int
    """Number of rows set aside, over all splits."""
    share: float
    """Share of all rows that are bad: `quarantined` but for those whose label training lacks by chance."""
    max_quarantined: float
    """The recipe's limit for `share`."""
    checks: list[CheckReport]
    corpus: CorpusReport | None = None
    corrections: CorrectionsReport | None = None

    @property
    def summary(self) -> str:
        """How many rows were set aside, and by which checks."""
        found = [one for one in self.checks if one.on_failure == "quarantine" and one.unexpected_count]
        why = ", ".join(one.told for one in found) or f"{len(self.checks)} checks"
        return f"{self.quarantined:,} of {sum(self.rows_in.values()):,} rows set aside ({why})"


def shorten_value(value: object, limit: int) -> str:
    """Return a value on one line: text in quotes with invisible characters escaped, and long values cut off."""
    if isinstance(value, str):
        visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value[:limit])
        return f"'{visible}'" if len(value) <= limit else f"'{visible}…"
    text = "null" if value is None else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def expectation_as_call(expectation: Expectation | CheckReport, limit: int = 80) -> str:
    """Return an expectation as a call, for example `expect_column_values_to_be_unique(column='text')`."""
    return (
        f"{expectation.type}({', '.join(f'{k}={shorten_value(v, limit)}' for k, v in expectation.arguments.items())})"
    )

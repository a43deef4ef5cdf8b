"""How many rows of a suite a candidate gets right."""

from __future__ import annotations

from tasks.stages import Report

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

"""What drift found, as part of the report of the validate stage."""

from __future__ import annotations

from typing import Literal

from tasks.stages import Report


class Change(Report):
    """One thing that was compared, and by how much it moved."""

    what: str
    """Name of what was compared, such as `labels (category)` or `length of text`."""
    measure: str
    """The unit of `effect`."""
    effect: float
    floor: float
    """Smallest effect that counts as drift."""
    p_value: float
    """Probability of a statistic at least as large if new and known rows had the same distribution."""
    moved: bool
    """Whether the effect reaches its floor and Holm's method rejects chance, over all that was compared."""
    detail: str
    """By how much, for people."""


class ExampleRow(Report):
    """A new row of the kind that moved the distribution."""

    row_id: int
    values: dict[str, str]
    """Shortened values by column."""


class DriftReport(Report):
    """How the new rows of the train split compare with those that the published model learned from."""

    status: Literal["compared", "nothing_new", "no_reference"]
    """`no_reference`: there was nothing to compare with; `reason` says why."""
    reason: str = ""
    repo_id: str
    revision: str | None = None
    """Tag of the published revision, or its commit if it has no tag; None without one."""
    confidence: float
    known_rows: int = 0
    """Rows of the published model in the comparison."""
    new_rows: int = 0
    """New rows in the comparison."""
    looked_at: int = 0
    """Rows of this run of which it is known whether they are new."""
    changes: tuple[Change, ...] = ()
    """All that was compared, the most important first."""
    examples: tuple[ExampleRow, ...] = ()

    @property
    def moved(self) -> list[str]:
        """What moved."""
        return [change.what for change in self.changes if change.moved]

    @property
    def word(self) -> str:
        """The result in a word or two: what moved, `none`, or `unknown`."""
        return ", ".join(self.moved) or ("unknown" if self.status == "no_reference" else "none")

    @property
    def sentence(self) -> str:
        """The result as a sentence."""
        if self.status == "no_reference":
            return f"Drift was not measured: {self.reason}."
        if self.status == "nothing_new":
            return f"No new rows: all {self.looked_at:,} rows that were looked at are among those of {self.revision}."
        rows = f"{self.new_rows:,} new rows with {self.known_rows:,} rows of {self.revision}"
        if not self.moved:
            return f"No drift was found: comparing {rows}, nothing moved."
        found = "; ".join(f"{change.what}: {change.detail}" for change in self.changes if change.moved)
        return f"The new rows drifted, comparing {rows}: {found}."

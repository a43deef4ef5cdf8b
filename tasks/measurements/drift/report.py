"""What drift found, as part of the reports of the validate and the evaluate stage."""

from __future__ import annotations

from typing import Final, Literal

from tasks.stages import Report

CONFIDENCE_ERROR_SHARE: Final = 0.1
"""Share of drift's error that is set aside for the evaluate stage, which looks at the champion's confidence."""


class MeasuredChange(Report):
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
    moved: bool = False
    """Whether the effect reaches its floor and Holm's method rejects chance, over all that the stage compared."""
    detail: str
    """By how much, for people."""


class DriftExampleRow(Report):
    """A new row of the kind that moved the distribution."""

    row_id: int
    values: dict[str, str]


class DriftReport(Report):
    """How the new rows of the train split compare with those that the published model learned from."""

    status: Literal["compared", "nothing_new", "no_reference"]
    """`no_reference`: there was nothing to compare with; `reason` says why."""
    reason: str = ""
    repo_id: str
    revision: str | None = None
    """Tag of the published revision, or its commit if it has no tag; None without one."""
    confidence: float
    min_confidence_fall: float = 0.02
    """Smallest fall of the published model's mean confidence that counts as drift, for the evaluate stage."""
    known_rows: int = 0
    new_rows: int = 0
    looked_at: int = 0
    """Rows of this run of which it is known whether they are new."""
    changes: tuple[MeasuredChange, ...] = ()
    """All that was compared, the most important first."""
    identifiers: tuple[str, ...] = ()
    """Columns of numbers that were not compared, because they look like identifiers."""
    examples: tuple[DriftExampleRow, ...] = ()
    new_row_ids: tuple[int, ...] = ()
    """A sample of the new rows, for the evaluate stage."""

    @property
    def moved(self) -> list[str]:
        return [change.what for change in self.changes if change.moved]

    @property
    def left_out(self) -> str:
        """Which columns were not compared, as a sentence; empty if there are none."""
        names = ", ".join(self.identifiers)
        return f"Not compared, because they look like identifiers or times: {names}." if names else ""

    @property
    def word(self) -> str:
        """The result in a word or two: what moved, `none`, or `unknown`."""
        return ", ".join(self.moved) or ("unknown" if self.status == "no_reference" else "none")

    @property
    def sentence(self) -> str:
        if self.status == "no_reference":
            return f"Drift was not measured: {self.reason}."
        if self.status == "nothing_new":
            return f"No new rows: all {self.looked_at:,} rows that were looked at are among those of {self.revision}."
        rows = f"{self.new_rows:,} new rows with {self.known_rows:,} rows of {self.revision}"
        if not self.moved:
            return f"No drift was found: comparing {rows}, nothing moved."
        found = "; ".join(f"{change.what}: {change.detail}" for change in self.changes if change.moved)
        return f"The new rows drifted, comparing {rows}: {found}."


class ChampionConfidence(Report):
    """How sure the published model is of the new rows, compared with held-out rows."""

    revision: str | None = None
    """Tag of the published model, or its commit if it has no tag."""
    change: MeasuredChange | None = None
    reason: str = ""
    unsure: tuple[tuple[int, float], ...] = ()
    """The `row_id`s of the new rows of which it is least sure, and how sure it is."""

    @property
    def is_less_sure(self) -> bool:
        """Whether the published model is less sure of the new rows."""
        return self.change is not None and self.change.moved

    @property
    def sentence(self) -> str:
        if self.change is None:
            return f"The published model's confidence in the new rows was not measured: {self.reason}."
        if not self.is_less_sure:
            return f"{self.revision} was not found to be less sure of the new rows: {self.change.detail}."
        return f"{self.revision} is less sure of the new rows: {self.change.detail}."

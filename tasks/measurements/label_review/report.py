"""What a run reports about labels that look wrong."""

from __future__ import annotations

from tasks.stages import Number, Report


class SuspectSplit(Report):
    """The rows of a split whose labels were reviewed."""

    split: str
    rows: int
    reviewed: int
    suspects: int
    """Rows of which a label looks wrong."""

    @property
    def sentence(self) -> str:
        """Return, for example, `98 of 10,003 train rows`; of which rows, if they are not all."""
        part = "" if self.reviewed == self.rows else f" that were looked at, of {self.rows:,}"
        return f"{self.suspects:,} of {self.reviewed:,} {self.split} rows{part}"


class SuspectLabel(Report):
    """A label that looks wrong in some of its rows."""

    label: str
    rows: int
    """Rows that have it, of those that were reviewed."""
    suspects: int
    suggested: str
    """What the model holds for right instead, most often."""
    most: int
    """In how many of them."""


class SuspectRow(Report):
    """A row of which a label looks wrong."""

    split: str
    row_id: int
    text: str
    given: str
    suggested: str
    confidence: Number
    """The probability of what is suggested."""


class SuspectReport(Report):
    """Rows that the model is sure are labelled wrongly."""

    splits: list[SuspectSplit]
    not_read: str = ""
    """Why no rows of the train split, or of the evaluated one, were reviewed; empty if those of both were."""
    labels: list[SuspectLabel]
    """Those with the most suspects first."""
    worst: list[SuspectRow]
    """The first of review.csv."""

    @property
    def sentence(self) -> str:
        """Say how many labels look wrong, or why nobody was asked."""
        if not self.splits:
            return f"no review of labels: {self.not_read}"
        found = f"labels that look wrong: {', '.join(one.sentence for one in self.splits)}"
        return f"{found}; {self.not_read}" if self.not_read else found

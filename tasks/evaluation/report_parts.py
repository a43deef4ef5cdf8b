"""Parts of the evaluation's report for some objectives: the results of labels, and how far vectors have moved."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator

from tasks.stages import Report

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that may be NaN, for which JSON has only null."""


class LabelResult(Report):
    """What a classifier does on one label."""

    label: str
    rows: int
    """Rows that have it."""
    predicted: int
    """Rows that are predicted to have it."""
    precision: Number
    recall: Number
    f1: Number
    low: Number | None = None
    """Lower end of F1's interval; None if the label has too few rows to be judged."""
    high: Number | None = None
    champion: Number | None = None
    """F1 of the champion on the rows that count for both."""
    gain: Number | None = None
    """How much better the candidate's F1 is there."""
    gain_low: Number | None = None
    gain_high: Number | None = None
    floor_p_values: dict[str, Number]
    """By precision, recall or F1, the probability of a value at least this bad, if the candidate were just at its floor."""


class Confusion(Report):
    """Rows with one label that are predicted to have another one."""

    label: str
    predicted: str
    rows: int
    share: Number
    """Of the rows that have the label."""
    champion: int | None = None
    """Rows of the champion."""


class LabelCurve(Report):
    """Precision and recall of a label by threshold."""

    label: str
    average_precision: Number
    recall: list[Number]
    """(M,), ascending."""
    precision: list[Number]
    """(M,)."""


class LabelReport(Report):
    """What a classifier does on each label."""

    results: list[LabelResult]
    """Those with the most rows first."""
    confusions: list[Confusion]
    """The labels that are mixed up most often, those first; empty if rows have several labels."""
    matrix: list[list[int]]
    """(L, L) for few labels, in the order of `names`: rows by the label that they have and the one that is predicted."""
    names: list[str]
    """(L,); empty for many labels."""
    curves: list[LabelCurve]
    """Empty unless each label has a probability of its own."""


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
    """Why no train rows were reviewed; empty if some were."""
    labels: list[SuspectLabel]
    """Those with the most suspects first."""
    worst: list[SuspectRow]
    """The first of review.csv."""

    @property
    def sentence(self) -> str:
        """Say how many labels look wrong."""
        found = f"labels that look wrong: {', '.join(one.sentence for one in self.splits)}"
        return f"{found}; {self.not_read}" if self.not_read else found


class VectorSpaceChange(Report):
    """How far the vectors of the same texts are from those of the champion."""

    texts: int
    cosine: Number | None
    """Mean cosine of the two vectors of each text; None if they have other sizes."""
    rotated: Number | None
    """The same after the best rotation of one of the spaces."""

    @property
    def sentence(self) -> str:
        """What that means for whoever has an index of vectors."""
        found = f"the vectors of {self.texts:,} held-out texts have another size than those of the published model"
        if self.cosine is not None:
            found = f"the vectors of {self.texts:,} held-out texts have a mean cosine of {self.cosine:.3f} with those of the published model"
            found += f", {self.rotated:.3f} after the best rotation"
        return f"{found}; an index of vectors must be rebuilt: those of two models cannot be compared"

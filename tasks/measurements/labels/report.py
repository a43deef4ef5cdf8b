"""The results of labels in an evaluation's report, as types."""

from __future__ import annotations

from tasks.stages import Number, Report


class LabelResult(Report):
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

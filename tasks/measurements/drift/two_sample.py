"""Tests of whether new and known values have the same distribution, by permutation.

A test draws which observations are new, again and again, and counts how often the statistic is as large as the real
one. That is exact for any number of values, with ties and with rare labels (Phipson and Smyth 2010,
https://doi.org/10.2202/1544-6115.1585), and stays so if it ends early where nothing is to be found (Besag and Clifford
1991, https://doi.org/10.1093/biomet/78.2.301). An observation is a row or, where rows belong together, a group of rows:
all of its rows count as one.

Texts are compared by a classifier that learns from one half of the observations and is tested on the other (Lopez-Paz and Oquab 2017,
https://arxiv.org/abs/1610.06545). Cross-validation would use all rows, but its folds depend on each other: permuting scores then rejects
too often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.objectives.bases.lazy_imports import scipy

Shares = Any
"""A sparse matrix (V, U): what share of each observation's rows is in each category."""
MAX_BINS = 512
"""Most values of numbers between which the statistic of Kolmogorov and Smirnov looks."""
FEWEST_TEXTS = 20
"""Fewest observations on each side for the test of texts: half of them teach the classifier."""
_CHUNK = 100
_ENOUGH = 50
"""A test ends early after so many statistics as large as the real one: there is nothing to find."""
Statistic = Callable[[NDArray[np.float64], NDArray[np.float64], int, int], NDArray[np.float64]]
"""From the counts of new observations by category (B, V), the counts of all (V,), and the numbers of new and all
observations to one or more statistics, (B, S)."""


@dataclass(frozen=True)
class ObservationUnits:
    """N rows, the known ones first, as observations."""

    units: NDArray[np.int64]
    """(N,) the number of each row's observation; those of known rows come first."""
    known: int
    new: int

    @classmethod
    def of(
        cls, known: int, new: int, groups: tuple[NDArray[Any] | None, NDArray[Any] | None] = (None, None)
    ) -> ObservationUnits:
        """From the numbers of rows on both sides, and their groups if rows belong together."""
        units: list[NDArray[np.int64]] = []
        counts: list[int] = []
        for rows, found in zip((known, new), groups, strict=True):
            numbers = np.arange(rows) if found is None else np.unique(found, return_inverse=True)[1]
            units.append(numbers + sum(counts))
            counts.append(int(numbers.max()) + 1 if rows else 0)
        return cls(np.concatenate(units), *counts)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Share of each row in its observation, (N,)."""
        found: NDArray[np.float64] = 1.0 / np.bincount(self.units)[self.units]
        return found

    def shares(self, categories: NDArray[np.int64], count: int) -> Shares:
        """Return what share of each observation's rows is in each category, (V, U)."""
        return scipy.sparse.csr_array((self.weights, (categories, self.units)), shape=(count, self.known + self.new))


@dataclass(frozen=True)
class PermutationSettings:
    """How often a test draws which observations are new, at most, and by what."""

    count: int
    random: np.random.Generator


def permutation_test(
    shares: Shares, new: int, statistic: Statistic, permutations: PermutationSettings
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the statistics (S,) and, if all observations are alike, the probability of one as large and its mean.

    The last `new` observations of `shares`, (V, U), are the new ones.
    """
    units = shares.shape[1]
    totals = np.asarray(shares.sum(axis=1)).ravel()
    real = statistic(np.asarray(shares[:, units - new :].sum(axis=1)).reshape(1, -1), totals, new, units)[0]
    as_large, total, drawn_so_far = np.zeros(len(real)), np.zeros(len(real)), 0
    p_values = np.full(len(real), np.nan)
    for start in range(0, permutations.count, _CHUNK):
        drawn = min(_CHUNK, permutations.count - start)
        sides = np.zeros((units, drawn))
        for column in range(drawn):
            sides[permutations.random.choice(units, new, replace=False, shuffle=False), column] = 1.0
        found = statistic((shares @ sides).T, totals, new, units)
        counted = as_large + (found >= real - 1e-9).cumsum(axis=0)  # (drawn, S)
        for i in np.flatnonzero(np.isnan(p_values) & (counted[-1] >= _ENOUGH)):
            p_values[i] = _ENOUGH / (start + 1 + np.argmax(counted[:, i] >= _ENOUGH))
        as_large, total, drawn_so_far = counted[-1], total + found.sum(axis=0), start + drawn
        if not np.isnan(p_values).any():
            break
    p_values = np.where(np.isnan(p_values), (as_large + 1) / (permutations.count + 1), p_values)
    return real, p_values, total / drawn_so_far


def label_shift_statistics(
    counts: NDArray[np.float64], totals: NDArray[np.float64], new: int, units: int
) -> NDArray[np.float64]:
    """Chi-square, the share of new observations with a label that no known one has, and total variation distance."""
    chi_square = ((counts - totals * new / units) ** 2 / totals).sum(axis=1)
    only_new = np.where(totals - counts < 1e-9, counts, 0.0).sum(axis=1) / new
    distance = np.abs(counts / new - (totals - counts) / (units - new)).sum(axis=1) / 2
    return np.stack([chi_square, only_new, distance], axis=1)


def kolmogorov_smirnov_statistic(
    counts: NDArray[np.float64], totals: NDArray[np.float64], new: int, units: int
) -> NDArray[np.float64]:
    """Largest distance of the two cumulative distributions over ordered categories."""
    differences = counts / new - (totals - counts) / (units - new)
    largest: NDArray[np.float64] = np.abs(np.cumsum(differences, axis=1)).max(axis=1, keepdims=True)
    return largest


def bin_numbers(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of each value's bin, (N,): of equal values, or of quantiles if there are very many values."""
    different, numbers = np.unique(values, return_inverse=True)
    if len(different) <= MAX_BINS:
        return numbers
    edges = np.unique(np.quantile(values, np.linspace(0, 1, MAX_BINS + 1)[1:-1], method="lower"))
    return np.searchsorted(edges, values)


def classifier_two_sample_test(
    features: Sequence[Sequence[int]], sides: ObservationUnits, permutations: PermutationSettings
) -> tuple[float, float, NDArray[np.float64]] | None:
    """Teach a classifier to tell new rows from known ones by their features.

    Return the area under its ROC curve on rows that it did not learn from, the probability of one as large by chance, and how new each
    row looks to it, (N,); None if there are too few observations.
    """
    if min(sides.known, sides.new) < FEWEST_TEXTS:
        return None
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression

    matrix = TfidfTransformer().fit_transform(_matrix(features))  # it sees no side, so permutations may keep it
    learns = np.concatenate([_half(sides.known, permutations.random), _half(sides.new, permutations.random)])  # (U,)
    is_new = sides.units >= sides.known
    rows = np.flatnonzero(learns[sides.units])
    classifier = LogisticRegression(solver="liblinear", class_weight="balanced", random_state=0)
    classifier.fit(matrix[rows], is_new[rows], sample_weight=sides.weights[rows])
    scores = np.asarray(classifier.decision_function(matrix))

    tested = np.flatnonzero(~learns[sides.units])
    numbers = np.cumsum(~learns) - 1  # of the observations that are left
    half = ObservationUnits(
        numbers[sides.units[tested]], int((~learns[: sides.known]).sum()), int((~learns[sides.known :]).sum())
    )
    area, p_value = area_under_curve_test(scores[tested], half, permutations)
    return area, p_value, scores


def area_under_curve_test(
    scores: NDArray[np.float64], sides: ObservationUnits, permutations: PermutationSettings
) -> tuple[float, float]:
    """Return the area under the ROC curve of scores (N,), and the probability of one as large by chance.

    It follows from the mean rank of the new observations (Mann and Whitney 1947,
    https://doi.org/10.1214/aoms/1177730491).
    """
    _, numbers = np.unique(scores, return_inverse=True)
    mass = np.bincount(numbers, sides.weights)
    ranks = (np.cumsum(mass) - mass / 2)[numbers] / (sides.known + sides.new)  # (N,), between 0 and 1
    mean_ranks = np.bincount(sides.units, sides.weights * ranks)  # (U,)

    def area(counts: NDArray[np.float64], _: NDArray[np.float64], new: int, units: int) -> NDArray[np.float64]:
        return (units * counts / new - new / 2) / (units - new)

    real, p_values, _ = permutation_test(
        scipy.sparse.csr_array(mean_ranks.reshape(1, -1)), sides.new, area, permutations
    )
    return float(real[0]), float(p_values[0])


def mean_decrease_test(
    values: NDArray[np.float64], sides: ObservationUnits, permutations: PermutationSettings
) -> tuple[float, float, float]:
    """Return the mean of the known and of the new observations of values (N,), and the probability of a fall as large by chance."""

    def fall(counts: NDArray[np.float64], totals: NDArray[np.float64], new: int, units: int) -> NDArray[np.float64]:
        return (totals - counts) / (units - new) - counts / new

    means = np.bincount(sides.units, sides.weights * values)  # (U,)
    shares = scipy.sparse.csr_array(means.reshape(1, -1))
    _, p_values, _ = permutation_test(shares, sides.new, fall, permutations)
    return float(means[: sides.known].mean()), float(means[sides.known :].mean()), float(p_values[0])


def _half(count: int, random: np.random.Generator) -> NDArray[np.bool_]:
    chosen = np.zeros(count, bool)
    chosen[random.choice(count, math.floor(count / 2), replace=False)] = True
    return chosen


def _matrix(features: Sequence[Sequence[int]]) -> Any:
    starts = np.cumsum([0, *map(len, features)])
    flat = np.fromiter((number for row in features for number in row), np.int64, starts[-1])
    used, columns = np.unique(flat, return_inverse=True)  # far fewer than there could be
    return scipy.sparse.csr_matrix((np.ones(len(flat)), columns, starts), shape=(len(features), max(1, len(used))))

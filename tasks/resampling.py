"""Intervals of figures, and of differences between models on the same rows, by the bootstrap.

Each of R resamples gives every row a weight drawn from Poisson(1), which is the bootstrap for many rows and needs no more
memory for more of them (Hanley and MacGibbon 2006, https://doi.org/10.1016/j.cmpb.2006.04.006; Chamandy et al. 2012). Models
that are compared get the same weights, so that what makes a row hard for both cancels out (the paired bootstrap, Koehn 2004,
https://aclanthology.org/W04-3250). An interval holds the middle of the resampled figures (Efron 1979, percentile method).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.scoring import Scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.objectives import Objective, State

_CHUNK = 2048
"""Rows whose weights are in memory at a time."""


@dataclass(frozen=True)
class Resampler:
    """Computes figures of rows, and of resamples of them.

    Args:
        objective: says what of a row can be summed, and the figures of sums.
        state: what the objective learned from the train split.
        resamples: R.
        confidence: share of the resampled figures that an interval holds.
        seed: of the weights; the same rows get the same ones.
    """

    objective: Objective[Any]
    state: State
    resamples: int
    confidence: float
    seed: int

    def totals(self, scores: Scores) -> NDArray[np.float64]:
        """What of N rows sums up, (S,)."""
        summed: Any = 0.0
        for start in range(0, len(scores), _CHUNK):
            summed = summed + self._parts(scores, start).sum(0)
        found: NDArray[np.float64] = summed
        return found

    def figures(self, scores: Scores) -> dict[str, float]:
        """The figures of N rows."""
        found = self.objective.compute(self.totals(scores), self.state)
        return {name: float(value) for name, value in found.items()}

    def resampled(self, models: Sequence[Scores]) -> list[dict[str, NDArray[np.float64]]]:
        """The figures of R resamples of the same rows, each (R,), for each model."""
        rows = len(models[0])
        assert all(np.array_equal(models[0].row_ids, scores.row_ids) for scores in models)
        sums: list[Any] = [0.0] * len(models)
        for start in range(0, rows, _CHUNK):
            size = (self.resamples, min(_CHUNK, rows - start))
            weights = np.random.default_rng([self.seed, start]).poisson(1.0, size).astype(float)  # (R, n)
            sums = [total + weights @ self._parts(scores, start) for total, scores in zip(sums, models, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):  # a resample of few rows may draw none of them
            return [self.objective.compute(total, self.state) for total in sums]

    def interval(self, resampled: NDArray[np.float64]) -> tuple[float, float]:
        """The ends of the interval of a figure, from its resamples (R,)."""
        outside = (1 - self.confidence) / 2
        low, high = np.nanquantile(resampled, [outside, 1 - outside])
        return float(low), float(high)

    def _parts(self, scores: Scores, start: int) -> NDArray[np.float64]:
        chunk = {name: column[start : start + _CHUNK] for name, column in scores.columns.items()}
        return self.objective.totals(chunk, self.state)


def mcnemar(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Probability of so uneven a split of the rows that only one of two models gets right, if both were equally good.

    The exact two-sided test of McNemar (1947, https://doi.org/10.1007/BF02295996).

    Args:
        one: (N,), the rows that one model gets right.
        other: (N,), those of the other.
    """
    from scipy.stats import binomtest

    only_one, only_other = int((one & ~other).sum()), int((other & ~one).sum())
    if only_one + only_other == 0:
        return 1.0
    return float(binomtest(only_one, only_one + only_other, 0.5).pvalue)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of several tests reject, so that with probability 1 - `level` none does so wrongly (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > level / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected

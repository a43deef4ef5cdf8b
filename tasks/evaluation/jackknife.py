"""The jackknife: how far a metric or a gain may be from the true one, from its values without one row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.report import min_interval_observations
from trainer.objectives.bases.lazy_imports import NDArray, scipy

ROUNDING = 1e-6
"""Rows whose contributions differ by less than this share of what they could differ by are equal."""


@dataclass(frozen=True)
class Jackknife:
    """The distribution of a metric or gain of N rows, estimated by leaving out one row at a time.

    It uses Student's distribution, with fewer degrees of freedom where few rows have most of the weight (Satterthwaite
    1946, https://doi.org/10.2307/3002019), and the same with the skewness of the rows removed (Hall 1992, Journal of the
    Royal Statistical Society B 54, 221-228). Interval ends and probabilities are the more cautious of the two.

    Where all rows say the same, the standard error is 0, and says nothing about rows that were not drawn: `largest_unseen_share` of
    them may be others. Such a row may differ by `scale`.
    """

    value: float
    error: float
    """Standard error of the value; infinite if there are too few rows for one, or the metric does not exist without one."""
    skewness: float
    """Skewness of the rows' contributions to the value, divided by the square root of N."""
    freedom: float
    """Degrees of freedom of the standard error."""
    rows: int
    """How many rows count."""
    scale: float
    """By how much the value of one row may differ from that of N equal rows."""

    @classmethod
    def of(
        cls, value: float, left_out: NDArray[np.float64], scale: float, confidence: float, rows: int | None = None
    ) -> Jackknife:
        """From the value of all rows, and the values without each row in turn, (N,); only `rows` of them count, by default all."""
        rows = len(left_out) if rows is None else rows
        if rows < min_interval_observations(confidence) or not np.isfinite(left_out).all():
            return cls(value, math.inf, 0.0, 1.0, rows, scale)
        effects, drawn = left_out.mean() - left_out, len(left_out)  # (N,)
        squares = float((effects**2).sum())
        if not squares > (ROUNDING * scale) ** 2:
            return cls(value, 0.0, 0.0, 1.0, rows, scale)
        kurtosis = drawn * float((effects**4).sum()) / squares**2
        freedom = min(rows - 1, 2 * drawn / max(kurtosis - 1, 1e-9))
        error = math.sqrt((drawn - 1) / drawn * squares)
        return cls(value, error, float((effects**3).sum()) / squares**1.5, freedom, rows, scale)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Ends of the interval of values that `tail` rejects on neither side."""
        if self.error in (0, math.inf):
            reach = self.error or self.scale * largest_unseen_share(self.rows, confidence)
            return self.value - reach, self.value + reach
        reach = -float(scipy.special.stdtrit(self.freedom, (1 - confidence) / 2))
        low = self.value - self.error * max(reach, self._skewed(reach))
        return low, self.value - self.error * min(-reach, self._skewed(-reach))

    def tail(self, limit: float) -> float:
        """Probability of a value this low or lower, if the true value were `limit`."""
        if self.error == math.inf:
            return 1.0
        if self.error == 0:
            return max(1 - max(limit - self.value, 0.0) / self.scale, 0.0) ** self.rows
        distance, skewness = (self.value - limit) / self.error, self.skewness
        straight = distance + skewness * distance**2 / 3 + skewness**2 * distance**3 / 27 + skewness / 6
        return float(scipy.special.stdtr(self.freedom, max(distance, straight)))

    def _skewed(self, straight: float) -> float:
        """The distance in standard errors that becomes `straight` when the skewness is removed."""
        if abs(self.skewness) < 1e-6:
            return straight
        inside = 1 + self.skewness * (straight - self.skewness / 6)
        return float(3 / self.skewness * (np.cbrt(inside) - 1))


def largest_unseen_share(rows: float, confidence: float) -> float:
    """Return which share s of other rows there may be, although N equal ones were drawn: (1 - s)^N is (1 - confidence) / 2.

    It is the length of the exact binomial interval of 0 or N of N (Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404);
    at 95%, about 3.7 / N. One-sided, 3 / N, it is called the rule of three.
    """
    return largest_unseen_mean([rows], confidence)


def largest_unseen_mean(rows: Sequence[float], confidence: float) -> float:
    """Return how large the mean of shares s of other rows may be, although in each part c of N rows all were equal.

    Parts with a likelihood of that, the product of (1 - s_c)^N_c, down to (1 - confidence) / 2 are possible; of one part, that is the exact
    binomial interval. Of F1 with the mean of a label's rows and predictions as N_c, the product is the highest likelihood of all rows being
    right (or wrong) that the labels' shares 1 - s_c allow. The mean of s_c is largest where 1 - s_c is min(1, level * N_c).
    """
    ascending = np.sort(np.asarray(rows, float))
    for count in range(len(ascending), 0, -1):
        few = ascending[:count]
        level = math.exp((math.log((1 - confidence) / 2) - (few * np.log(few)).sum()) / few.sum())
        if level * few[-1] <= 1:
            break
    return float((1 - level * few).sum() / len(ascending))


def max_contribution_difference(left_out: NDArray[np.float64], rows: int) -> float:
    """Return by how much the contributions of `rows` to a metric differ, at most: rows - 1 times as much as the values without them, (N,)."""
    finite = left_out[np.isfinite(left_out)]
    return max(rows - 1, 0) * float(np.ptp(finite)) if len(finite) else 0.0

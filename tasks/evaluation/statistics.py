"""Intervals of figures, and of differences between models on the same rows, by the bootstrap; how probable a shortfall is.

Each of R resamples gives every row a weight drawn from Poisson(1), which is the bootstrap for many rows and needs no more
memory for more of them (Hanley and MacGibbon 2006, https://doi.org/10.1016/j.cmpb.2006.04.006; Chamandy et al. 2012). Models
that are compared get the same weights, so that what makes a row hard for both cancels out (the paired bootstrap, Koehn 2004,
https://aclanthology.org/W04-3250). An interval holds the middle of the resampled figures (Efron 1979, percentile method).

That alone is too short for a gate where few rows decide, so that a worse model passes more often than it should. The ends of
a difference are therefore the outer ones of this interval and those that the jackknife gives (`Jackknife`); where a figure is the
share of rows that are right, they are those of a score test of paired shares (`score_test`) and nothing is resampled.
benchmarks/gate_simulation.py measures how often each errs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from params.schema import Direction
from tasks.evaluation.scoring import Scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.objectives.bases.objective import Objective, State

_CHUNK = 2048
"""Rows whose weights are in memory at a time."""


@dataclass(frozen=True)
class Gain:
    """How much better one model is than another on the same rows, whatever the metric's direction."""

    value: float
    low: float
    """Ends of the interval."""
    high: float
    p_value: float | None
    """Of McNemar's test, where the metric is a share of rows."""
    at_most: Callable[[float], float]
    """Probability of a gain so low, if the true one were the number given."""


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
        found = self.objective.compute_metrics(self.totals(scores), self.state)
        return {name: float(value) for name, value in found.items()}

    def resampled(self, models: Sequence[Scores]) -> list[dict[str, NDArray[np.float64]]]:
        """The figures of R resamples of the same rows, each (R,), for each model."""
        rows = len(models[0])
        assert all(np.array_equal(models[0].row_ids, scores.row_ids) for scores in models)
        sums: Any = 0.0  # (R, models * S)
        for start in range(0, rows, _CHUNK):
            size = (self.resamples, min(_CHUNK, rows - start))
            weights = np.random.default_rng([self.seed, start]).poisson(1.0, size).astype(float)  # (R, n)
            sums = sums + weights @ np.concatenate([self._parts(scores, start) for scores in models], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):  # a resample of few rows may draw none of them
            return [self.objective.compute_metrics(total, self.state) for total in np.split(sums, len(models), axis=1)]

    def interval(self, resampled: NDArray[np.float64]) -> tuple[float, float]:
        """The ends of the interval of a figure, from its resamples (R,)."""
        outside = (1 - self.confidence) / 2
        low, high = np.nanquantile(resampled, [outside, 1 - outside])
        return float(low), float(high)

    def gains(
        self, pairs: Sequence[tuple[Scores, Scores]], directions: Mapping[str, Direction]
    ) -> list[dict[str, Gain]]:
        """By metric, how much better the first model of each pair is than the second; all on the same N rows."""
        resampled = self.resampled([scores for pair in pairs for scores in pair])
        return [
            self._gains(own, other, resampled[2 * i : 2 * i + 2], directions) for i, (own, other) in enumerate(pairs)
        ]

    def _gains(
        self,
        own: Scores,
        other: Scores,
        resampled: Sequence[Mapping[str, NDArray[np.float64]]],
        directions: Mapping[str, Direction],
    ) -> dict[str, Gain]:
        mine, theirs = self.figures(own), self.figures(other)
        left_out = self._left_out(own), self._left_out(other)
        found = {}
        for metric, value in mine.items():
            right = [self.objective.correct_rows(metric, scores.columns) for scores in (own, other)]
            if right[0] is not None and right[1] is not None:
                found[metric] = share_gain(right[0], right[1], self.confidence)
                continue
            sign = 1.0 if directions[metric] == "max" else -1.0
            gain = sign * (value - theirs[metric])
            jackknife = Jackknife.of(gain, sign * (left_out[0][metric] - left_out[1][metric]))
            low, high = self.interval(sign * (resampled[0][metric] - resampled[1][metric]))
            ends = jackknife.interval(self.confidence)
            found[metric] = Gain(gain, min(low, ends[0]), max(high, ends[1]), None, jackknife.tail)
        return found

    def shortfalls(
        self, own: Scores, floors: Mapping[str, float], directions: Mapping[str, Direction]
    ) -> dict[str, float]:
        """By metric, the probability of a figure so far on the wrong side of its floor, if the model were just at it."""
        from scipy.special import bdtr

        figures, left_out = self.figures(own), self._left_out(own)
        found = {}
        for metric, floor in floors.items():
            right = self.objective.correct_rows(metric, own.columns)
            if right is not None:  # exactly, by the binomial distribution
                found[metric] = float(bdtr(float(right.sum()), len(right), min(max(floor, 0.0), 1.0)))
                continue
            sign = 1.0 if directions[metric] == "max" else -1.0
            found[metric] = Jackknife.of(sign * figures[metric], sign * left_out[metric]).tail(sign * floor)
        return found

    def _left_out(self, scores: Scores) -> dict[str, NDArray[np.float64]]:
        """The figures of all rows but one, for each of them, (N,); NaN where without a row there is none."""
        totals, names = self.totals(scores), self.figures(scores)
        found: dict[str, list[NDArray[np.float64]]] = {metric: [] for metric in names}
        for start in range(0, len(scores), _CHUNK):
            left = totals - self._parts(scores, start)  # (n, S)
            with np.errstate(divide="ignore", invalid="ignore"):
                figures = self.objective.compute_metrics(left, self.state)
            for metric, parts in found.items():
                parts.append(figures.get(metric, np.full(len(left), np.nan)))
        return {metric: np.concatenate(parts) for metric, parts in found.items()}

    def _parts(self, scores: Scores, start: int) -> NDArray[np.float64]:
        chunk = {name: column[start : start + _CHUNK] for name, column in scores.columns.items()}
        return self.objective.additive_statistics(chunk, self.state)


def share_gain(one: NDArray[np.bool_], other: NDArray[np.bool_], confidence: float) -> Gain:
    """The gain in the share of rows that are right.

    Args:
        one: (N,), the rows that the model gets right.
        other: (N,), those of the model that it is compared with.
        confidence: of the interval, which holds the gains that `score_test` does not rule out at either side.
    """
    only_one, only_other, rows = int((one & ~other).sum()), int((other & ~one).sum()), len(one)
    outside = (1 - confidence) / 2
    return Gain(
        (only_one - only_other) / rows,
        _least_gain(only_one, only_other, rows, outside),
        -_least_gain(only_other, only_one, rows, outside),
        mcnemar(one, other),
        lambda limit: score_test(only_other, only_one, rows, -limit),
    )


def score_test(only_one: int, only_other: int, rows: int, gain: float) -> float:
    """Probability of at least so many more rows right by one of two models, if its share were higher by `gain`.

    The score test of paired shares (Tango 1998, Statistics in Medicine 17, 891-908), with the correction for continuity that Edwards (1948, https://doi.org/10.1007/BF02289261) gave McNemar's, which it is for
    a gain of 0: without it, worse models pass a little too often where the models differ on few rows.
    """
    from scipy.special import ndtr

    excess, error = _score(only_one, only_other, rows, gain)
    if error == 0:
        return float(excess <= 0)
    return float(ndtr(-excess / error))


def _score(only_one: int, only_other: int, rows: int, gain: float) -> tuple[float, float]:
    """Rows right beyond those expected, and their standard error at the most likely shares that differ by `gain`."""
    b = -only_one - only_other + (2 * rows - only_one + only_other) * gain
    c = -only_other * gain * (1 - gain)
    share = (math.sqrt(max(b * b - 8 * rows * c, 0.0)) - b) / (4 * rows)
    return only_one - only_other - rows * gain - 1, math.sqrt(max(rows * (2 * share + gain * (1 - gain)), 0.0))


def _least_gain(only_one: int, only_other: int, rows: int, level: float) -> float:
    """The gain above which `score_test` rules out none at `level`."""
    from scipy.optimize import brentq
    from scipy.special import ndtri

    critical = -float(ndtri(level))

    def distance(gain: float) -> float:
        excess, error = _score(only_one, only_other, rows, gain)
        return float(excess - critical * error)

    return float(brentq(distance, -1.0, 1.0)) if distance(-1.0) > 0 else -1.0


@dataclass(frozen=True)
class Jackknife:
    """What leaving out one row at a time says of a figure of N rows.

    Its ends and probabilities are the more careful ones of Student's distribution, whose degrees of freedom fall where few
    rows weigh most (Satterthwaite 1946, https://doi.org/10.2307/3002019), and of the same with the skewness of the rows
    removed (Hall 1992, Journal of the Royal Statistical Society B 54, 221-228).
    """

    value: float
    error: float
    """Standard error of the value."""
    skewness: float
    """Of what the rows add to the value, over the square root of N."""
    freedom: float
    """Degrees of freedom of the standard error."""

    @classmethod
    def of(cls, value: float, left_out: NDArray[np.float64]) -> Jackknife:
        """From the figure of all rows, and those with each row left out in turn, (N,)."""
        left_out = left_out[np.isfinite(left_out)]  # without the only row that has it, there may be no figure
        effects = (left_out.mean() if len(left_out) else 0.0) - left_out  # (N,)
        rows, squares = len(effects), float((effects**2).sum())
        if rows < 2 or not squares > 0:
            return cls(value, 0.0, 0.0, 1.0)
        kurtosis = rows * float((effects**4).sum()) / squares**2
        freedom = min(rows - 1, 2 * rows / max(kurtosis - 1, 1e-9))
        error = math.sqrt((rows - 1) / rows * squares)
        return cls(value, error, float((effects**3).sum()) / squares**1.5, freedom)

    def interval(self, confidence: float) -> tuple[float, float]:
        """The limits that `tail` rules out at neither side."""
        from scipy.special import stdtrit

        reach = -float(stdtrit(self.freedom, (1 - confidence) / 2))
        low = self.value - self.error * max(reach, self._skewed(reach))
        return low, self.value - self.error * min(-reach, self._skewed(-reach))

    def tail(self, limit: float) -> float:
        """Probability of a figure so low, if the true one were `limit`."""
        from scipy.special import stdtr

        if self.error == 0:
            return float(self.value >= limit)
        distance, skewness = (self.value - limit) / self.error, self.skewness
        straight = distance + skewness * distance**2 / 3 + skewness**2 * distance**3 / 27 + skewness / 6
        return float(stdtr(self.freedom, max(distance, straight)))

    def _skewed(self, straight: float) -> float:
        """The distance, in standard errors, that is `straight` once the skewness is removed."""
        if abs(self.skewness) < 1e-6:
            return straight
        inside = 1 + self.skewness * (straight - self.skewness / 6)
        return float(3 / self.skewness * (np.cbrt(inside) - 1))


def mcnemar(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Probability of so uneven a split of the rows that only one of two models gets right, if both were equally good.

    The exact two-sided test of McNemar (1947, https://doi.org/10.1007/BF02295996).

    Args:
        one: (N,), the rows that one model gets right.
        other: (N,), those of the other.
    """
    from scipy.special import bdtr

    only_one, only_other = int((one & ~other).sum()), int((other & ~one).sum())
    return min(1.0, 2 * float(bdtr(float(min(only_one, only_other)), only_one + only_other, 0.5)))


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of several tests reject, so that with probability 1 - `level` none does so wrongly (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > level / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected

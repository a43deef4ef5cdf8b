"""Confidence intervals of metrics and of gains on the same rows, by the bootstrap and the jackknife, and their tests.

Each of R resamples gives every row a weight drawn from Poisson(1). For many rows this is the bootstrap, in memory that does
not grow with them (Hanley and MacGibbon 2006, https://doi.org/10.1016/j.cmpb.2006.04.006; Chamandy et al. 2012). Models
that are compared get the same weights, so that what makes a row hard for both cancels out (the paired bootstrap, Koehn 2004,
https://aclanthology.org/W04-3250). An interval holds the middle of the resampled metrics (Efron 1979, percentile method).

Where few rows decide, that interval alone is too short for a gate: a worse model passes more often than it should. Each end
of a gain's interval is therefore the outer one of the bootstrap's and the jackknife's (`Jackknife`). Where the metric is
the share of rows that are right, the interval is that of a score test of paired shares (`paired_share_score_test`), without resampling.

Rows that belong together are one observation: resamples draw groups of rows, and the jackknife leaves one group out at a time
(Field and Welsh 2007, https://doi.org/10.1111/j.1467-9868.2007.00593.x). The exact tests of shares need independent rows, so with
groups the bootstrap and the jackknife take their place.

Fewer observations than `min_interval_observations` give no interval: its ends are infinite. Only those count that a metric depends on: a
query without a relevant document says nothing of NDCG. benchmarks/gate_simulation.py measures how often each errs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from params.sections.base import Direction
from tasks.evaluation.jackknife import ROUNDING, Jackknife, largest_unseen_mean, max_contribution_difference
from tasks.evaluation.report import min_interval_observations
from tasks.evaluation.scoring import RowScores
from trainer.objectives.bases.lazy_imports import NDArray, scipy
from trainer.objectives.bases.metrics.metric import names_where
from trainer.objectives.bases.objective import Objective, ObjectiveState

_BLOCKS = 500
"""Most blocks of observations that the jackknife leaves out of a metric of a whole split, each block by itself."""
_CHUNK = 2048
"""Rows that are resampled at a time."""


@dataclass(frozen=True)
class Gain:
    """How much better one model is than another on the same rows, whatever the metric's direction."""

    value: float
    low: float
    """Ends of the interval; infinite if there are too few observations for one."""
    high: float
    p_value: float | None
    """The p-value of McNemar's test, where the metric is a share of rows."""
    at_most: Callable[[float], float]
    """Probability of a gain this low or lower, if the true gain were the argument."""
    observations: int
    """How many rows or groups count in the metric."""


@dataclass(frozen=True)
class LeftOut:
    """A metric without one observation, for each of N rows or groups; or without one block of them."""

    values: NDArray[np.float64]
    """(N,); NaN where the metric does not exist without it."""
    counts: NDArray[np.bool_]
    """Whether the metric is about it, (N,)."""


@dataclass(frozen=True)
class Resampler:
    """Computes the metrics of rows, their intervals, and the gains of one model over another, from R `resamples`.

    An interval holds a share of them, `confidence`. Their weights depend on the `seed` and on the number of rows or groups only.
    """

    objective: Objective[Any]
    state: ObjectiveState
    resamples: int
    confidence: float
    seed: int

    @property
    def _whole_names(self) -> frozenset[str]:
        """The metrics that no sums over rows determine."""
        return names_where(self.objective.metrics, "value_of_all")

    def totals(self, scores: RowScores) -> NDArray[np.float64]:
        found: NDArray[np.float64] = sum(chunk.sum(0) for chunk in self._observed(scores))
        return found

    def metrics(self, scores: RowScores) -> dict[str, float]:
        found = self.objective.compute_metrics(self.totals(scores), self.state)
        whole = self.objective.whole_metrics(scores.columns)
        return {name: float(value) for name, value in (found | whole).items()}

    def resample(self, models: Sequence[RowScores]) -> list[dict[str, NDArray[np.float64]]]:
        """For each model the metrics of R resamples of the same rows, each (R,)."""
        assert all(np.array_equal(models[0].row_ids, scores.row_ids) for scores in models)
        sums: Any = 0.0  # (R, models * S)
        start, drawn = 0, []
        for chunks in zip(*map(self._observed, models), strict=True):
            drawn.append(_weights(self.seed, start, self.resamples, len(chunks[0])))  # (R, n)
            sums = sums + drawn[-1].astype(float) @ np.concatenate(chunks, axis=1)
            start += len(chunks[0])
        with np.errstate(divide="ignore", invalid="ignore"):  # a resample of few rows may draw none of them
            found = [self.objective.compute_metrics(total, self.state) for total in np.split(sums, len(models), axis=1)]
        if not self._whole_names:
            return found
        return [f | self._whole(scores, np.concatenate(drawn, 1)) for f, scores in zip(found, models, strict=True)]

    def intervals(self, scores: RowScores) -> dict[str, tuple[float, float]]:
        """Ends of the interval of each metric of N rows."""
        (resampled,), totals, left_out = self.resample([scores]), self.totals(scores), self._leave_one_out(scores)
        found = {}
        sums = self.objective.sums(totals, self.state)
        for name, values in resampled.items():
            parts: Sequence[float] = ()
            if share_of := self.objective.metrics[name].share_of:
                rows = share_of(sums)
                scale = 1.0 if rows and self.objective.group_score else scores.observations / len(scores)
                parts = [own * scale for own in rows or [len(scores)]]
            found[name] = self.interval(values, int(left_out[name].counts.sum()), parts)
        return found

    def interval(
        self, resampled: NDArray[np.float64], observations: int, parts: Sequence[float] = ()
    ) -> tuple[float, float]:
        """Ends of the interval of a metric, from its resamples (R,).

        A resample without a value may have any value: it counts against both ends. Too few observations say nothing. Where all resamples
        are equal, they do not either: of a share, such as one of 1.0 on all rows, the interval is then as far as other rows can move it. `parts`
        are its observations, or those of each share that it is the mean of.
        """
        if observations < min_interval_observations(self.confidence):
            return -math.inf, math.inf
        outside, unknown = (1 - self.confidence) / 2, np.isnan(resampled)
        if not unknown.any():
            low, high = np.quantile(resampled, [outside, 1 - outside])
        else:
            low = np.quantile(np.where(unknown, -math.inf, resampled), outside, method="lower")
            high = np.quantile(np.where(unknown, math.inf, resampled), 1 - outside, method="higher")
        if parts and high - low < ROUNDING:
            reach = largest_unseen_mean(parts, self.confidence)
            low, high = max(low - reach, 0.0), min(high + reach, 1.0)
        return float(low), float(high)

    def gains(self, own: RowScores, other: RowScores, directions: Mapping[str, Direction]) -> dict[str, Gain]:
        """Gains of one model over another by metric, on the same N rows."""
        resampled = self.resample([own, other])
        own_metrics, other_metrics = self.metrics(own), self.metrics(other)
        left_out = self._leave_one_out(own), self._leave_one_out(other)
        found = {}
        for metric, value in own_metrics.items():
            right = [self._correct_rows(metric, scores) for scores in (own, other)]
            if right[0] is not None and right[1] is not None:
                found[metric] = accuracy_gain(right[0], right[1], self.confidence)
                continue
            sign = 1.0 if directions[metric] == "max" else -1.0
            gain = sign * (value - other_metrics[metric])
            without = left_out[0][metric], left_out[1][metric]
            observations = int((without[0].counts | without[1].counts).sum())
            scale = (
                max(2 * abs(gain), *(max_contribution_difference(one.values, observations) for one in without)) or 1.0
            )
            values = sign * (without[0].values - without[1].values)
            jackknife = Jackknife.of(gain, values, scale, self.confidence, observations)
            low, high = self.interval(sign * (resampled[0][metric] - resampled[1][metric]), observations)
            ends = jackknife.interval(self.confidence)
            found[metric] = Gain(gain, min(low, ends[0]), max(high, ends[1]), None, jackknife.tail, observations)
        return found

    def floor_p_values(
        self, own: RowScores, floors: Mapping[str, float], directions: Mapping[str, Direction]
    ) -> dict[str, float]:
        """By metric, the probability of a value at least as far on the wrong side, if the model were just at its floor."""
        metrics, left_out = self.metrics(own), self._leave_one_out(own)
        found = {}
        for metric, floor in floors.items():
            right = self._correct_rows(metric, own)
            if right is not None:  # exactly, by the binomial distribution
                found[metric] = float(scipy.special.bdtr(float(right.sum()), len(right), min(max(floor, 0.0), 1.0)))
                continue
            sign = 1.0 if directions[metric] == "max" else -1.0
            values, observations = left_out[metric].values, int(left_out[metric].counts.sum())
            scale = max(abs(metrics[metric]), max_contribution_difference(values, observations)) or 1.0
            jackknife = Jackknife.of(sign * metrics[metric], sign * values, scale, self.confidence, observations)
            found[metric] = jackknife.tail(sign * floor)
        return found

    def _leave_one_out(self, scores: RowScores) -> dict[str, LeftOut]:
        """The metrics without one observation, for each of them.

        Those of a whole split are without one block of observations, for at most `_BLOCKS` blocks (Shao and Wu 1989).
        """
        totals, names = self.totals(scores), self.metrics(scores)
        parts: dict[str, list[LeftOut]] = {metric: [] for metric in names.keys() - self._whole_names}
        for chunk in self._observed(scores):
            with np.errstate(divide="ignore", invalid="ignore"):
                metrics = self.objective.compute_metrics(totals - chunk, self.state)
            statistics = self.objective.sums(chunk, self.state)
            for metric, of_chunks in parts.items():
                values = metrics.get(metric, np.full(len(chunk), np.nan))
                of_chunks.append(LeftOut(values, self.objective.metrics[metric].counted(statistics)))
        found = {
            metric: LeftOut(
                *(np.concatenate(one) for one in zip(*((part.values, part.counts) for part in of_chunks), strict=True))
            )
            for metric, of_chunks in parts.items()
        }
        blocks = np.arange(scores.observations) * _BLOCKS // max(scores.observations, _BLOCKS)
        whole = self._whole(scores, (blocks != block for block in np.unique(blocks)))
        return found | {metric: LeftOut(values, np.ones(len(values), np.bool_)) for metric, values in whole.items()}

    def _whole(self, scores: RowScores, drawn: Iterable[NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        """The metrics of whole splits, for each way to draw every observation, (n,), so many times; nothing if there are none."""
        if not self._whole_names:
            return {}
        place = np.arange(len(scores)) if scores.groups is None else np.unique(scores.groups, return_inverse=True)[1]
        rows = (np.repeat(np.arange(len(scores)), times[place].astype(int)) for times in drawn)
        found = [self.objective.whole_metrics(scores.take(some).columns) for some in rows]
        return {metric: np.array([one[metric] for one in found]) for metric in self._whole_names}

    def _observed(self, scores: RowScores) -> Iterator[NDArray[np.float64]]:
        """Yield the totals of rows, or of groups of rows, in chunks (n, S)."""
        if scores.groups is None:
            for start in range(0, len(scores), _CHUNK):
                yield self._row_totals(scores.take(slice(start, start + _CHUNK)))
            return
        order = np.argsort(scores.groups, kind="stable")
        starts = np.flatnonzero(np.diff(scores.groups[order], prepend=-1))  # of each group in `order`
        for first in range(0, len(starts), _CHUNK):
            inside = starts[first : first + _CHUNK]
            end = starts[first + _CHUNK] if first + _CHUNK < len(starts) else len(order)
            yield np.add.reduceat(self._row_totals(scores.take(order[inside[0] : end])), inside - inside[0])

    def _row_totals(self, scores: RowScores) -> NDArray[np.float64]:
        return self.objective.additive_statistics(scores.columns, self.state)

    def _correct_rows(self, metric: str, scores: RowScores) -> NDArray[np.bool_] | None:
        """Which rows are right, if the metric is their share and they are independent, as the exact tests ask."""
        right = self.objective.metrics[metric].right
        return right(scores.columns) if right and scores.groups is None else None


@lru_cache(maxsize=16)
def _weights(seed: int, start: int, resamples: int, rows: int) -> NDArray[np.uint8]:
    """Weights of a chunk of rows, (R, n). Drawing them takes longest, and every model and comparison uses the same."""
    return np.random.default_rng([seed, start]).poisson(1.0, (resamples, rows)).astype(np.uint8)


def accuracy_gain(one: NDArray[np.bool_], other: NDArray[np.bool_], confidence: float) -> Gain:
    """Return the gain of one model over another in the share of rows that are right.

    The arrays (N,) say which rows each model gets right. The interval holds the gains that `paired_share_score_test` does not
    reject.
    """
    only_one, only_other, rows = int((one & ~other).sum()), int((other & ~one).sum()), len(one)
    outside = (1 - confidence) / 2
    return Gain(
        (only_one - only_other) / rows,
        _least_gain(only_one, only_other, rows, outside),
        -_least_gain(only_other, only_one, rows, outside),
        mcnemar_p_value(only_one, only_other),
        lambda limit: paired_share_score_test(only_other, only_one, rows, -limit),
        rows,
    )


def paired_share_score_test(only_one: int, only_other: int, rows: int, gain: float) -> float:
    """Probability of at least this excess of rows that one model gets right, if its true share were higher by `gain`.

    The score test of paired shares (Tango 1998, Statistics in Medicine 17, 891-908) with the continuity correction of
    Edwards (1948, https://doi.org/10.1007/BF02289261); for a gain of 0 it is McNemar's test with that correction. Without
    it, worse models pass a little too often where the models differ on few rows.

    Of N `rows`, the model alone gets `only_one` right, the other model alone `only_other`; `gain` is the difference of the shares to test.
    """
    excess, error = _score(only_one, only_other, rows, gain)
    if error == 0:
        return float(excess <= 0)
    return float(scipy.special.ndtr(-excess / error))


def _score(only_one: int, only_other: int, rows: int, gain: float) -> tuple[float, float]:
    """Excess of right rows over the expected number, and its standard error at the likeliest shares that differ by `gain`."""
    b = -only_one - only_other + (2 * rows - only_one + only_other) * gain
    c = -only_other * gain * (1 - gain)
    share = (math.sqrt(max(b * b - 8 * rows * c, 0.0)) - b) / (4 * rows)
    return only_one - only_other - rows * gain - 1, math.sqrt(max(rows * (2 * share + gain * (1 - gain)), 0.0))


def _least_gain(only_one: int, only_other: int, rows: int, level: float) -> float:
    """The smallest gain that `paired_share_score_test` does not reject at `level`."""
    critical = -float(scipy.special.ndtri(level))

    def distance(gain: float) -> float:
        excess, error = _score(only_one, only_other, rows, gain)
        return float(excess - critical * error)

    return float(scipy.optimize.brentq(distance, -1.0, 1.0)) if distance(-1.0) > 0 else -1.0


def mcnemar_p_value(only_one: int, only_other: int) -> float:
    """The p-value of McNemar's exact two-sided test (1947, https://doi.org/10.1007/BF02295996) that two models are equal.

    The arguments count the rows that only one of the two models gets right.
    """
    if only_one == only_other:  # without such rows there is nothing to test
        return 1.0
    return float(scipy.stats.binomtest(only_one, only_one + only_other).pvalue)

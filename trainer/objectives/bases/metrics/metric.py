"""A metric: its name, which value is best, how it follows from sums over rows, and what else an evaluation asks of it.

An objective says once what it sums over rows (`Objective.statistics`, numbers of each row by name), and lists its metrics:

    metrics = named(
        Metric("loss", "min", ratio("nll", "rows")),
        Metric("accuracy", "max", ratio("correct", "rows"), share_of=every_row, right=lambda scores: scores["correct"] == 1),
    )

Because a metric follows from sums, thousands of resamples of the rows give its interval, and slices and rows that are left out its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from params.sections.base import Direction
from trainer.objectives.bases.lazy_imports import NDArray, np
from trainer.objectives.bases.rows import ScoreColumns

Sums = Mapping[str, "NDArray[np.float64]"]
"""Statistics by name, of each of N rows, (N,) or (N, ...), or summed over rows, (...) and (..., K); the shapes of K are the same in both."""


def every_row(_: Sums) -> Sequence[float]:
    """`Metric.share_of` a metric that is one mean over all rows, such as accuracy."""
    return ()


@dataclass(frozen=True)
class Metric:
    """One metric of an objective. All functions but `value` are about rows or groups of rows, where the objective has a `group_score`."""

    name: str
    best: Direction
    """Whether the lowest or the highest value is best."""
    value: Callable[[Sums], NDArray[np.float64] | None] | None = None
    """Returns the metric, (...), of sums over rows, (...) and (..., K); None if they do not say it, such as bits per byte of unknown bytes."""
    value_of_all: Callable[[ScoreColumns], float] | None = None
    """Instead of `value`, where no sums determine the metric, such as a rank correlation: returns it of the scores of N rows.

    A resample has some rows several times, and others not at all.
    """
    share_of: Callable[[Sums], Sequence[float]] | None = None
    """Of a share, from 0 to 1, for which there is an interval even where all rows have the same: returns how many rows say it, of summed statistics.

    `every_row` of a mean over all of them. One number of a mean over some, such as the queries with a relevant document. Of a mean of shares,
    such as a macro average, one for each share; all rows together would make it look more certain than it is.
    """
    on_slices: str | None = None
    """The metric that slices have instead, where this one means nothing, because it needs the rows of all labels."""
    only_evaluated: bool = False
    """Whether only the evaluate stage computes it, and a training can not choose its best weights by it."""
    per_tokenizer: bool = False
    """Whether it cannot be compared between models with different tokenizers."""
    restated: bool = False
    """Whether it compares with what a row's labels say. Between models that make other labels, only rows count that `says_all`."""
    about: Callable[[Sums], NDArray[np.bool_]] | None = None
    """Returns which of N rows with these statistics it is about, (N,); by default all.

    A query without a relevant document has no NDCG, and a text without a span no recall: they say nothing of the metric, and do not count
    towards the observations that an interval needs.
    """
    exists: Callable[[Sums], bool] | None = None
    """Returns whether rows with these summed statistics have it; those without a span have no recall."""
    right: Callable[[ScoreColumns], NDArray[np.bool_]] | None = None
    """Returns which of N rows are right, (N,), if the metric is the share of right rows: it is then tested exactly."""
    weights: Callable[[ScoreColumns], NDArray[np.float64] | None] | None = None
    """Returns how much each of N rows counts, (N,), such as its tokens; None if nobody can say. By default all count alike."""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.value_of_all is None):
            raise TypeError(f"metric {self.name} has either `value` or `value_of_all`")

    def counted(self, statistics: Sums) -> NDArray[np.bool_]:
        """Return which of N rows or groups with these statistics the metric is about, (N,)."""
        if self.about is None:
            return np.ones(len(next(iter(statistics.values()))), np.bool_)
        return self.about(statistics)

    def row_weights(self, scores: ScoreColumns) -> NDArray[np.float64] | None:
        """Return how much each of N rows counts, (N,); None if all count alike, or nobody can say."""
        return self.weights(scores) if self.weights else None

    def is_defined(self, sums: Sums) -> bool:
        """Whether rows with these summed statistics have the metric."""
        return self.exists is None or self.exists(sums)


def named(*metrics: Metric) -> dict[str, Metric]:
    """Return metrics by name, in their order."""
    return {metric.name: metric for metric in metrics}


def ratio(part: str, whole: str) -> Callable[[Sums], NDArray[np.float64]]:
    """Return the `value` of a metric that divides one sum by another."""
    return partial(_divide, part, whole)


def _divide(part: str, whole: str, sums: Sums) -> NDArray[np.float64]:
    return sums[part] / sums[whole]


def is_positive(name: str) -> Callable[[Sums], NDArray[np.bool_]]:
    """Return what a metric is `about` that concerns the rows of which a statistic is positive."""
    return partial(_is_positive, name)


def _is_positive(name: str, statistics: Sums) -> NDArray[np.bool_]:
    return statistics[name] > 0


def directions(metrics: Mapping[str, Metric]) -> dict[str, Direction]:
    """Return which value is best, by metric; those that only the evaluate stage computes are last."""
    ordered = sorted(metrics.values(), key=lambda metric: metric.only_evaluated)
    return {metric.name: metric.best for metric in ordered}


def directions_in_training(metrics: Mapping[str, Metric]) -> dict[str, Direction]:
    """Return which value is best, by metric that a training computes."""
    return directions({name: metric for name, metric in metrics.items() if not metric.only_evaluated})


def names_where(metrics: Mapping[str, Metric], flag: str) -> frozenset[str]:
    """Return the names of the metrics that have a flag, such as `per_tokenizer`."""
    return frozenset(name for name, metric in metrics.items() if getattr(metric, flag))


def to_table(statistics: Sums) -> NDArray[np.float64]:
    """Return statistics of N rows, (N,) or (N, ...), as a table (N, S)."""
    columns = [one.reshape(len(one), math.prod(one.shape[1:])) for one in map(np.asarray, statistics.values())]
    return np.concatenate(columns, axis=1).astype(float)


def from_table(table: NDArray[np.float64], like: Sums) -> dict[str, NDArray[np.float64]]:
    """Return the columns (..., S) of `to_table` by name, (...) or (..., ...); `like` are statistics of any rows."""
    found, start = {}, 0
    for name, one in like.items():
        shape = np.shape(one)[1:]
        size = math.prod(shape)
        found[name] = table[..., start : start + size].reshape((*table.shape[:-1], *shape))
        start += size
    return found

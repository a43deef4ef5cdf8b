"""Pairs of models for benchmarks/gate_simulation.py: scores of a candidate and a champion with a known true gain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Gain, Resampler, accuracy_gain
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions as directions_of_metrics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = dict[str, NDArray[np.float64]]

_BATCH = 50
"""Pairs that are resampled with the same weights."""


@dataclass(frozen=True)
class Family(ABC):
    """A joint distribution of the scores of two models."""

    rows: int
    metric: ClassVar[str]
    is_shift: ClassVar[bool] = False
    """Whether another true gain only shifts every observed gain, so that one simulation covers all true gains."""

    @abstractmethod
    def describe(self) -> str:
        """Return the name of its row in the tables."""

    @abstractmethod
    def gains(self, pairs: int, gain: float, seed: int, confidence: float = 0.95) -> Iterator[Gain]:
        """Yield the observed gain of each pair; the candidate is truly better by `gain`."""

    def allows(self, gain: float) -> bool:
        """Whether two such models can differ by `gain`."""
        return True

    def random(self, seed: int) -> np.random.Generator:
        """Return a generator that is seeded for this family."""
        return np.random.default_rng([seed, self.rows, *(ord(letter) for letter in self.describe())])


class Resampled(Family):
    """A family whose gains are computed from scores of every row."""

    objective: ClassVar[str]
    state: ClassVar[dict[str, Any]] = {}

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """The group of each row, as the gate knows it."""
        return None

    @abstractmethod
    def pair(self, chance: np.random.Generator, gain: float) -> tuple[Columns, Columns]:
        """Return the scores of a candidate that is truly better by `gain`, and of the champion."""

    def gains(self, pairs: int, gain: float, seed: int, confidence: float = 0.95) -> Iterator[Gain]:
        chance, ids = self.random(seed), np.arange(self.rows)
        learned = objectives.build_objective(ObjectiveChoice(name=self.objective))
        directions = directions_of_metrics(learned.metrics)
        for start in range(0, pairs, _BATCH):
            drawn = [self.pair(chance, gain) for _ in range(min(_BATCH, pairs - start))]
            resampler = Resampler(learned, self.state, resamples=2000, confidence=confidence, seed=seed + start)
            for pair in drawn:
                own, other = (RowScores(ids, columns, self.groups) for columns in pair)
                yield resampler.gains(own, other, directions)[self.metric]


@dataclass(frozen=True)
class Accuracy(Family):
    """Rows are right or wrong; a share `differ` of them is right for exactly one of the two models."""

    accuracy: float
    differ: float
    metric = "accuracy"

    def describe(self) -> str:
        return f"accuracy {self.accuracy}, {self.differ:.0%} of rows differ"

    def allows(self, gain: float) -> bool:
        return abs(gain) <= self.differ

    def counts(self, chance: np.random.Generator, gain: float, size: tuple[int, ...]) -> NDArray[np.int64]:
        """Numbers of rows that only the candidate, only the champion, both and neither get right, (..., 4)."""
        one, other = (self.differ + gain) / 2, (self.differ - gain) / 2
        both = self.accuracy - other
        return chance.multinomial(self.rows, [one, other, both, 1 - one - other - both], size)

    def gains(self, pairs: int, gain: float, seed: int, confidence: float = 0.95) -> Iterator[Gain]:
        """The gain in a share of rows follows from two counts, without resampling."""
        for one, other, *_ in self.counts(self.random(seed), gain, (pairs,)).tolist():
            yield gain_of_counts(one, other, self.rows, confidence)


@cache
def gain_of_counts(only_own: int, only_other: int, rows: int, confidence: float = 0.95) -> Gain:
    """Return the product's gain in a share of rows; pairs with equal counts have equal gains."""
    row = np.arange(rows)
    return accuracy_gain(row < only_own, (row >= only_own) & (row < only_own + only_other), confidence)


@dataclass(frozen=True)
class BitsPerByte(Resampled):
    """Texts of log-normal length; the losses differ by 10% on each text, or by 100% on a twentieth of them."""

    spread: float
    """Standard deviation of the logarithm of the length."""
    rare: bool
    objective = "causal_lm"
    metric = "bits_per_byte"
    is_shift = True

    def describe(self) -> str:
        how = "fails on 5% of rows" if self.rare else "differs by 10% a row"
        return f"bits per byte, spread of lengths {self.spread}, {how}"

    def pair(self, chance: np.random.Generator, gain: float) -> tuple[Columns, Columns]:
        size = np.exp(chance.normal(5.0, self.spread, self.rows))
        loss = size * np.log(2) * chance.gamma(20.0, 1 / 20, self.rows)  # 1 bit per byte on average
        other = (chance.random(self.rows) < 0.05) - 0.05 if self.rare else chance.normal(0.0, 0.1, self.rows)
        own = loss * (1 + other) - gain * size * np.log(2)
        rest = {"tokens": size / 4, "correct": size / 8, "bytes": size}
        return {"nll": own, **rest}, {"nll": loss, **rest}


@dataclass(frozen=True)
class Grouped(Resampled):
    """Rows of groups: half of what the models differ by is common to all rows of a group."""

    group_rows: int
    """Rows of each group."""
    is_known: bool
    """Whether the gate knows the groups (`data.group_by`)."""
    objective = "sequence_classification"
    metric = "loss"
    state: ClassVar[dict[str, Any]] = {"labels": ["a", "b"]}
    is_shift = True

    def describe(self) -> str:
        if self.group_rows == 1:
            return "loss"
        return f"loss, groups of {self.group_rows} rows, {'known' if self.is_known else 'taken for independent rows'}"

    @property
    def groups(self) -> NDArray[np.int64] | None:
        return np.arange(self.rows) // self.group_rows if self.is_known else None

    def pair(self, chance: np.random.Generator, gain: float) -> tuple[Columns, Columns]:
        common = np.repeat(chance.normal(0.0, 0.1, self.rows // self.group_rows), self.group_rows)
        other = chance.gamma(4.0, 0.25, self.rows)
        own = other + common + chance.normal(0.0, 0.1, self.rows) - gain
        rest = {"label": np.zeros(self.rows), "prediction": np.zeros(self.rows), "confidence": np.full(self.rows, 0.8)}
        return {"nll": own, **rest}, {"nll": other, **rest}


@dataclass(frozen=True)
class GroupedAccuracy(Resampled):
    """Rows of known groups are right or wrong; a share `differ` of them is right for exactly one of the two models."""

    differ: float
    group_rows: int
    is_common: bool
    """Whether the rows of a group are all right or all wrong; otherwise each is on its own."""
    objective = "sequence_classification"
    metric = "accuracy"
    state: ClassVar[dict[str, Any]] = {"labels": ["a", "b"]}

    def describe(self) -> str:
        how = "a group is right or wrong as a whole" if self.is_common else f"groups of {self.group_rows} rows"
        return f"accuracy 0.7, {self.differ:.0%} of rows differ, {how}"

    def allows(self, gain: float) -> bool:
        return abs(gain) <= self.differ

    @property
    def groups(self) -> NDArray[np.int64] | None:
        return np.arange(self.rows) // self.group_rows

    def pair(self, chance: np.random.Generator, gain: float) -> tuple[Columns, Columns]:
        one, other = (self.differ + gain) / 2, (self.differ - gain) / 2
        both, times = 0.7 - other, self.group_rows if self.is_common else 1
        drawn = chance.choice(4, self.rows // times, p=[one, other, both, 1 - one - other - both])
        draw = np.repeat(drawn, times)
        zeros = np.zeros(self.rows)
        rest = {"nll": zeros, "label": zeros, "confidence": zeros + 0.8}
        own, champion = ((draw != 0) & (draw != 2), (draw != 1) & (draw != 2))
        return {**rest, "prediction": own.astype(float)}, {**rest, "prediction": champion.astype(float)}


@dataclass(frozen=True)
class Spans(Resampled):
    """Rows with none to a few spans, hard and easy ones; both models find 80% of them and predict some false ones."""

    objective = "token_classification"
    metric = "f1"
    state: ClassVar[dict[str, Any]] = {"labels": ["O", "B-a", "I-a"]}

    def describe(self) -> str:
        return "F1 of spans"

    def pair(self, chance: np.random.Generator, gain: float) -> tuple[Columns, Columns]:
        spans = chance.poisson(chance.gamma(1.0, 1.5, self.rows))
        found, false = 0.8, 0.1  # as shares of the actual spans
        f1 = 2 * found / (found + false + 1) + gain
        more = f1 * (1 + false) / (2 - f1) - found  # share of the spans that only the candidate finds
        easy = chance.beta(4.0, 1.0, self.rows)  # share of a row's spans that is found: 0.8 on average
        shares = (easy + more * ((1 - easy) / (1 - found) if more > 0 else easy / found), easy)
        hits = [chance.binomial(spans, share) for share in shares]
        made = [(hit, hit + chance.poisson(false * spans)) for hit in hits]
        one = np.ones(self.rows)
        rest = {"nll": one, "tokens": 10 * one, "correct": one, "actual_spans": spans.astype(float)}
        own, other = ({**rest, "correct_spans": a.astype(float), "predicted_spans": b.astype(float)} for a, b in made)
        return own, other


@dataclass(frozen=True)
class MacroF1(Resampled):
    """Ten labels, the rarest on 2% of the rows; a wrong prediction is any other label with equal probability."""

    differ: float
    objective = "sequence_classification"
    metric = "macro_f1"
    state: ClassVar[dict[str, Any]] = {"labels": [str(i) for i in range(10)]}
    shares: ClassVar[tuple[float, ...]] = (0.2, 0.18, 0.15, 0.12, 0.1, 0.08, 0.07, 0.05, 0.03, 0.02)
    accuracy: ClassVar[float] = 0.8

    def describe(self) -> str:
        return f"macro F1 of 10 labels, {self.differ:.0%} of rows differ"

    def pair(self, chance: np.random.Generator, gain: float) -> tuple[Columns, Columns]:
        better = self._accuracy_for(gain)
        label = chance.choice(10, self.rows, p=self.shares)
        edges = np.cumsum(
            [(self.differ + better) / 2, (self.differ - better) / 2, self.accuracy - (self.differ - better) / 2]
        )
        draw = np.searchsorted(edges, chance.random(self.rows))
        made = []
        for right in ((draw == 0) | (draw == 2), (draw == 1) | (draw == 2)):
            elsewhere = (label + chance.integers(1, 10, self.rows)) % 10
            predicted = np.where(right, label, elsewhere).astype(float)
            one = np.ones(self.rows)
            made.append({"nll": one, "label": label.astype(float), "prediction": predicted, "confidence": 0.8 * one})
        return made[0], made[1]

    @cache  # noqa: B019 (a family is small and lives as long as the simulation)
    def _accuracy_for(self, gain: float) -> float:
        """Return the gain in accuracy that gives a gain of `gain` in macro F1, in the limit of many rows."""
        from scipy.optimize import brentq

        start = _macro_f1(self.accuracy, self.shares)
        return float(brentq(lambda x: _macro_f1(self.accuracy + x, self.shares) - start - gain, -0.2, 0.15))


def _macro_f1(accuracy: float, shares: tuple[float, ...]) -> float:
    """Macro F1 in the limit of many rows, a share `accuracy` of which is right for every label."""
    share = np.array(shares)
    predicted = share * accuracy + (1 - share) * (1 - accuracy) / (len(share) - 1)
    return float(np.mean(2 * share * accuracy / (share + predicted)))


FAMILIES: tuple[Family, ...] = (
    *(
        Accuracy(rows, right, differ)
        for right, differ in ((0.9, 0.02), (0.9, 0.05), (0.7, 0.1), (0.7, 0.3))
        for rows in (200, 1000, 3000)
    ),
    *(BitsPerByte(rows, spread, rare) for rare in (False, True) for spread in (0.5, 1.0, 1.5) for rows in (200, 1000)),
    *(Grouped(1000, size, known) for size in (5, 20) for known in (True, False)),
    Spans(200),
    Spans(1000),
    MacroF1(300, 0.1),
)
FEW = (1, 2, 5, 6, 8, 10, 15, 20)
"""Numbers of rows, or of groups of rows."""


def few(observations: int) -> tuple[Family, ...]:
    """Return families with so few observations."""
    return (
        Accuracy(observations, 0.7, 0.1),
        Accuracy(observations, 0.7, 0.3),
        GroupedAccuracy(5 * observations, 0.1, 5, is_common=False),
        GroupedAccuracy(5 * observations, 0.3, 5, is_common=True),
        Grouped(observations, 1, is_known=True),
        Grouped(5 * observations, 5, is_known=True),
        BitsPerByte(observations, 0.5, rare=False),
        BitsPerByte(observations, 1.5, rare=False),
        BitsPerByte(observations, 0.5, rare=True),
        Spans(observations),
        MacroF1(observations, 0.1),
        MacroF1(observations, 0.3),
    )

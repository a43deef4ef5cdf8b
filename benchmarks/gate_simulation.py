"""How often the gate errs: pairs of models whose true difference is known, judged by the gate's own code.

    python -m benchmarks.gate_simulation [--pairs 2000] [--processes 2] [--json FILE]

Each family draws the scores of a candidate and a champion on the same rows, so that the gain in a metric is a given number
for endless rows. Their totals, figures, intervals, tests and verdicts are those of the product. A gate is wrong when it
publishes a model whose true gain is not above its bar, which it may do with probability (1 - confidence) / 2 = 2.5%; for
slices, with 1 - confidence = 5% over all of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from params.schema import Gate, ObjectiveChoice
from tasks.evaluation.gate import Comparison, Part, judge, passes
from tasks.evaluation.scoring import Scores
from tasks.evaluation.statistics import Gain, Resampler, share_gain
from trainer import objectives

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = dict[str, NDArray[np.float64]]

_BATCH = 50
"""Pairs whose resamples have the same weights."""
GATES = {"no worse (default)": Gate(), "gain: 0.01": Gate(gain=0.01), "margin: 0.01": Gate(margin=0.01)}
ERRORS = {"at the bar": 0.0, "0.005 below it": -0.005, "0.02 below it": -0.02}
POWER = (0.005, 0.01, 0.02, 0.04)


@dataclass(frozen=True)
class Family(ABC):
    """A way in which the scores of two models go together."""

    rows: int
    metric: ClassVar[str]
    is_shift: ClassVar[bool] = False
    """Whether another true gain only adds to every gain that is seen, so that one simulation does for all of them."""

    @abstractmethod
    def describe(self) -> str:
        """In words."""

    @abstractmethod
    def gains(self, pairs: int, gain: float, seed: int) -> Iterator[Gain]:
        """What the gate sees of so many pairs, of which the candidate is better by `gain` in truth."""

    def allows(self, gain: float) -> bool:
        """Whether two such models can differ by so much."""
        return True

    def chance(self, seed: int) -> np.random.Generator:
        """A source of its own."""
        return np.random.default_rng([seed, self.rows, *(ord(letter) for letter in self.describe())])


class Resampled(Family):
    """A family whose gains take scores of every row."""

    objective: ClassVar[str]
    state: ClassVar[dict[str, Any]] = {}

    @abstractmethod
    def pair(self, chance: np.random.Generator, gain: float) -> tuple[Columns, Columns]:
        """Scores of a candidate that is better by `gain` in truth, and of the champion."""

    def gains(self, pairs: int, gain: float, seed: int) -> Iterator[Gain]:
        chance, ids = self.chance(seed), np.arange(self.rows)
        learned = objectives.build(ObjectiveChoice(name=self.objective))
        directions = {**learned.metrics, **learned.evaluate_only_metrics}
        for start in range(0, pairs, _BATCH):
            drawn = [self.pair(chance, gain) for _ in range(min(_BATCH, pairs - start))]
            scores = [(Scores(ids, own), Scores(ids, other)) for own, other in drawn]
            resampler = Resampler(learned, self.state, resamples=2000, confidence=0.95, seed=seed + start)
            yield from (found[self.metric] for found in resampler.gains(scores, directions))


@dataclass(frozen=True)
class Accuracy(Family):
    """Rows are right or wrong; `differ` of them are right for just one of the two."""

    accuracy: float
    differ: float
    metric = "accuracy"

    def describe(self) -> str:
        return f"accuracy {self.accuracy}, {self.differ:.0%} of rows differ"

    def allows(self, gain: float) -> bool:
        return abs(gain) <= self.differ

    def counts(self, chance: np.random.Generator, gain: float, size: tuple[int, ...]) -> NDArray[np.int64]:
        """Rows that only the candidate, only the champion, both and neither get right, (..., 4)."""
        one, other = (self.differ + gain) / 2, (self.differ - gain) / 2
        both = self.accuracy - other
        return chance.multinomial(self.rows, [one, other, both, 1 - one - other - both], size)

    def gains(self, pairs: int, gain: float, seed: int) -> Iterator[Gain]:
        """A share of rows is not resampled: its gain follows from two counts."""
        for one, other, *_ in self.counts(self.chance(seed), gain, (pairs,)).tolist():
            yield gain_of_counts(one, other, self.rows)


@cache
def gain_of_counts(only_own: int, only_other: int, rows: int) -> Gain:
    """The product's gain in a share of rows; pairs with the same counts have the same."""
    place = np.arange(rows)
    return share_gain(place < only_own, (place >= only_own) & (place < only_own + only_other), 0.95)


@dataclass(frozen=True)
class BitsPerByte(Resampled):
    """Texts of log-normal length; the models differ by 10% on each, or on a twentieth of them by all of their loss."""

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
class Spans(Resampled):
    """Rows with none to a few spans, hard and easy ones; both models find 80%, and predict some that are none."""

    objective = "token_classification"
    metric = "f1"
    state: ClassVar[dict[str, Any]] = {"labels": ["O", "B-a", "I-a"]}

    def describe(self) -> str:
        return "F1 of spans"

    def pair(self, chance: np.random.Generator, gain: float) -> tuple[Columns, Columns]:
        spans = chance.poisson(chance.gamma(1.0, 1.5, self.rows))
        found, false = 0.8, 0.1  # of the spans that there are
        f1 = 2 * found / (found + false + 1) + gain
        more = f1 * (1 + false) / (2 - f1) - found  # of the spans that the candidate finds
        easy = chance.beta(4.0, 1.0, self.rows)  # share of a row's spans that is found: 0.8 on average
        shares = (easy + more * ((1 - easy) / (1 - found) if more > 0 else easy / found), easy)
        hits = [chance.binomial(spans, share) for share in shares]
        made = [(hit, hit + chance.poisson(false * spans)) for hit in hits]
        one = np.ones(self.rows)
        rest = {"nll": one, "tokens": 10 * one, "correct": one, "spans": spans.astype(float)}
        own, other = ({**rest, "found": a.astype(float), "predicted": b.astype(float)} for a, b in made)
        return own, other


@dataclass(frozen=True)
class MacroF1(Resampled):
    """Ten labels, the rarest on 2% of the rows; a wrong prediction is any other label."""

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
            told = np.where(right, label, elsewhere).astype(float)
            one = np.ones(self.rows)
            made.append({"nll": one, "label": label.astype(float), "prediction": told, "confidence": 0.8 * one})
        return made[0], made[1]

    @cache  # noqa: B019 (a family is small and lives as long as the simulation)
    def _accuracy_for(self, gain: float) -> float:
        """The gain in accuracy that is one of `gain` in macro F1, for endless rows."""
        from scipy.optimize import brentq

        start = _macro_f1(self.accuracy, self.shares)
        return float(brentq(lambda x: _macro_f1(self.accuracy + x, self.shares) - start - gain, -0.2, 0.15))


def _macro_f1(accuracy: float, shares: tuple[float, ...]) -> float:
    """Of endless rows, a share `accuracy` of which is right, whatever their label."""
    share = np.array(shares)
    told = share * accuracy + (1 - share) * (1 - accuracy) / (len(share) - 1)
    return float(np.mean(2 * share * accuracy / (share + told)))


FAMILIES: tuple[Family, ...] = (
    *(
        Accuracy(rows, right, differ)
        for right, differ in ((0.9, 0.02), (0.9, 0.05), (0.7, 0.1), (0.7, 0.3))
        for rows in (200, 1000, 3000)
    ),
    *(BitsPerByte(rows, spread, rare) for rare in (False, True) for spread in (0.5, 1.0, 1.5) for rows in (200, 1000)),
    Spans(200),
    Spans(1000),
    MacroF1(300, 0.1),
)


@dataclass(frozen=True)
class Cell:
    """How often one gate publishes candidates of one true gain."""

    family: str
    rows: int
    gate: str
    gain: float
    is_error: bool
    """Whether publishing such a one is wrong."""
    pairs: int
    published: float


def cells(family: Family, pairs: int, seed: int = 0) -> Iterator[Cell]:
    """All gates and true gains of a family."""
    errors = ERRORS.values() if family.is_shift or isinstance(family, Accuracy) else [0.0]  # as the others take long
    wanted = {round(gate.bar + below, 3) for gate in GATES.values() for below in errors} | set(POWER)
    common = list(family.gains(pairs, 0.0, seed)) if family.is_shift else []
    for gain in sorted(gain for gain in wanted if family.allows(gain)):
        seen = [_moved(one, gain) for one in common] or list(family.gains(pairs, gain, seed))
        for name, gate in GATES.items():
            published = sum(passes(comparison(family.metric, found, family.rows), gate) for found in seen) / len(seen)
            yield Cell(family.describe(), family.rows, name, gain, gain <= gate.bar, len(seen), published)


def _moved(gain: Gain, by: float) -> Gain:
    return Gain(gain.value + by, gain.low + by, gain.high + by, gain.p_value, gain.at_most)


def comparison(metric: str, gain: Gain, rows: int) -> Comparison:
    """A gain as the gate takes it."""
    return Comparison(
        against="champion",
        metric=metric,
        gain=gain.value,
        low=gain.low,
        high=gain.high,
        p_value=gain.p_value,
        rows=rows,
    )


@dataclass(frozen=True)
class SliceCell:
    """How often any of several slices keeps a candidate from being published that passes otherwise."""

    gate: str
    truth: str
    slices: int
    rows: int
    """Of each slice."""
    is_error: bool
    """Whether an alarm is wrong."""
    pairs: int
    alarm: float


SLICE_TRUTHS: dict[str, tuple[float, float, bool]] = {
    "all as they should be": (0.0, 0.0, True),
    "all just at the limit": (0.05, 0.05, True),
    "one worse by 0.15": (0.15, 0.0, False),
    "one worse by 0.3": (0.3, 0.0, False),
}
"""How much worse the first slice and the others are than 0.85, which both kinds of gate allow to be 0.05 worse."""


def slice_cells(pairs: int, seed: int = 0, slices: int = 50) -> Iterator[SliceCell]:
    """Alarms of gates on slices; the models differ on 10% of the rows, or on as many as they must."""
    gates = [Gate(slice_margin=0.05, margin=0.5), Gate(slice_floors={"accuracy": 0.8}, margin=0.5)]
    whole = comparison("accuracy", gain_of_counts(10, 10, 1000), 1000)
    for rows in (30, 60, 200):
        for truth, (first, others, is_error) in SLICE_TRUTHS.items():
            chance = np.random.default_rng([seed, rows, *(ord(letter) for letter in truth)])
            drawn = [
                Accuracy(rows, 0.85, max(0.1, worse)).counts(chance, -worse, (pairs, count))
                for worse, count in ((first, 1), (others, slices - 1))
            ]
            counts = np.concatenate(drawn, axis=1)[..., :3].tolist()
            for gate in gates:
                alarms = 0
                for pair in counts:
                    said = judge(
                        gate,
                        metric="accuracy",
                        directions={"accuracy": "max"},
                        figures={"accuracy": 0.85},
                        comparisons=[whole],
                        parts=[_part(*part, rows, by_margin=gate.slice_margin is not None) for part in pair],
                        has_champion=True,
                        is_champion=False,
                        rolled_back_reason=None,
                    )
                    alarms += said.verdict != "publish"
                name = "slice_margin: 0.05" if gate.slice_margin else "slice_floors: 0.8"
                yield SliceCell(name, truth, slices, rows, is_error, pairs, alarms / pairs)


@cache
def _part(only_own: int, only_other: int, both: int, rows: int, *, by_margin: bool) -> Part:
    gain = gain_of_counts(only_own, only_other, rows)
    return Part(
        division="part",
        part="one",
        rows=rows,
        metric="accuracy",
        value=(only_own + both) / rows,
        low=None,
        high=None,
        champion=(only_other + both) / rows,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        below_floor=None if by_margin else _below_floor(only_own + both, rows),
        below_margin=gain.at_most(-0.05) if by_margin else None,
    )


@cache
def _below_floor(right: int, rows: int) -> float:
    learned = objectives.build(ObjectiveChoice(name="sequence_classification"))
    resampler = Resampler(learned, {"labels": ["a", "b"]}, resamples=200, confidence=0.95, seed=0)
    zeros, told = np.zeros(rows), (np.arange(rows) >= right).astype(float)
    scores = Scores(np.arange(rows), {"nll": zeros, "label": zeros, "prediction": told, "confidence": zeros + 0.5})
    return resampler.shortfalls(scores, {"accuracy": 0.8}, {"accuracy": "max"})["accuracy"]


def main() -> None:
    """Run the simulation and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of models for each figure")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of each process
    with ProcessPoolExecutor(arguments.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        longest_first = sorted(FAMILIES, key=lambda family: (family.is_shift, isinstance(family, Accuracy)))
        tasks = {family: pool.submit(list_cells, family, arguments.pairs) for family in longest_first}
        of_slices = pool.submit(list_slice_cells, arguments.pairs)
        found = [tasks[family].result() for family in FAMILIES]
        slices = of_slices.result()
    for name, gate in GATES.items():
        wanted = [*(round(gate.bar + below, 3) for below in ERRORS.values()), *POWER]
        powers = " | ".join(f"better by {gain}" for gain in POWER)
        print(f"\n### {name}: published, % of pairs\n\n| scores | rows | {' | '.join(ERRORS)} | {powers} |")
        print(f"|{' --- |' * (2 + len(ERRORS) + len(POWER))}")
        for family, cells_found in zip(FAMILIES, found, strict=True):
            rates = {round(cell.gain, 3): f"{100 * cell.published:.1f}" for cell in cells_found if cell.gate == name}
            print(f"| {family.describe()} | {family.rows} | {' | '.join(rates.get(gain, '') for gain in wanted)} |")
    print("\n### slices: kept or refused because of one, % of pairs\n\n| gate | truth | slices | rows of each | % |")
    print("| --- | --- | --- | --- | --- |")
    for cell in slices:
        print(f"| {cell.gate} | {cell.truth} | {cell.slices} | {cell.rows} | {100 * cell.alarm:.1f} |")
    if arguments.json:
        every = [asdict(cell) for cell in [*(cell for some in found for cell in some), *slices]]
        arguments.json.write_text(json.dumps(every, indent=1), encoding="utf-8")


def list_cells(family: Family, pairs: int) -> list[Cell]:
    """`cells`, as another process can return them."""
    return list(cells(family, pairs))


def list_slice_cells(pairs: int) -> list[SliceCell]:
    """`slice_cells`, as another process can return them."""
    return list(slice_cells(pairs))


if __name__ == "__main__":
    main()

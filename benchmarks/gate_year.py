"""How often the gate errs in a year of candidates on the same held-out rows, with either value of evaluation.gate.over.

    python -m benchmarks.gate_year [--years 4000]

In each year twelve candidates are compared with one champion, with the gate's own code. For the error, none is truly better, and
the year errs if at least one passes. The candidates are independent of each other, or each takes 90% of its answers from the
same model. For the power, one candidate is truly better. Accuracy 0.9; a tenth of the answers differs from the champion's.
Other metrics have intervals by resampling: for them, the error of one of the comparisons.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.gate_families import Accuracy, BitsPerByte, Family, Spans, gain_of_counts
from benchmarks.gate_simulation import comparison
from params.sections.evaluation import Gate
from tasks.evaluation.gate import gain_passes_bar

if TYPE_CHECKING:
    from numpy.typing import NDArray

GATES = {"release": Gate(), "test_rows": Gate(over="test_rows")}
CANDIDATES = 12
ACCURACY, DIFFER = 0.9, 0.1
KINDS = {"independent": 0.0, "alike": 0.9}
"""Share of a candidate's answers that are those of a model which all candidates of the year are like."""
ROWS = (1000, 5000)
GAINS = (0.01, 0.02, 0.03, 0.05)
OTHERS: tuple[Family, ...] = (BitsPerByte(200, 1.0, rare=False), BitsPerByte(1000, 0.5, rare=False), Spans(1000))


def year_counts(
    chance: np.random.Generator, years: int, rows: int, shared: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the rows that only the candidate, and only the champion, gets right, each (years, CANDIDATES)."""
    wrong = chance.binomial(rows, 1 - ACCURACY, years)[:, None]  # rows that the champion gets wrong, (years, 1)
    one = _differing(chance, wrong, DIFFER / 2 / (1 - ACCURACY), shared)
    return one, _differing(chance, rows - wrong, DIFFER / 2 / ACCURACY, shared)


def _differing(chance: np.random.Generator, rows: NDArray[np.int64], share: float, shared: float) -> NDArray[np.int64]:
    """Those of rows (years, 1) on which each candidate differs from the champion: a `share` of them on average."""
    common = chance.binomial(rows, share)  # on which the model that all are like differs
    size = (len(rows), CANDIDATES)
    return chance.binomial(common, shared + (1 - shared) * share, size) + chance.binomial(
        rows - common, (1 - shared) * share, size
    )


@cache
def _passes(name: str, one: int, other: int, rows: int) -> bool:
    gate = GATES[name]
    gain = gain_of_counts(one, other, rows, gate.comparison_confidence)
    return gain_passes_bar(comparison("accuracy", gain, rows), gate)


def errors(years: int, rows: int, shared: float, seed: int = 0) -> dict[str, float]:
    """Share of the years in which at least one candidate passes that is no better, for each gate."""
    one, other = year_counts(np.random.default_rng([seed, rows, round(100 * shared)]), years, rows, shared)
    pairs = [list(zip(*year, strict=True)) for year in zip(one.tolist(), other.tolist(), strict=True)]
    return {name: sum(any(_passes(name, *pair, rows) for pair in year) for year in pairs) / years for name in GATES}


def power(pairs: int, rows: int, gain: float, seed: int = 0) -> dict[str, float]:
    """Share of the candidates that pass and are truly better by `gain`, for each gate."""
    family = Accuracy(rows, ACCURACY, DIFFER)
    counts = family.counts(family.random(seed), gain, (pairs,))[:, :2].tolist()
    return {name: sum(_passes(name, one, other, rows) for one, other in counts) / pairs for name in GATES}


def error_of_one(pairs: int, family: Family, seed: int = 0) -> dict[str, float]:
    """Share of the candidates that pass and are no better, for each gate."""
    found = {}
    for name, gate in GATES.items():
        gains = family.gains(pairs, 0.0, seed, gate.comparison_confidence)
        found[name] = sum(gain_passes_bar(comparison(family.metric, one, family.rows), gate) for one in gains) / pairs
    return found


def _cells(rates: dict[str, float], count: int) -> Iterator[str]:
    for rate in rates.values():
        yield f"{100 * rate:.2f} ± {100 * sqrt(rate * (1 - rate) / count):.2f}"


def main() -> None:
    """Run the simulation and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=4000)
    years = parser.parse_args().years
    heads = " | ".join(f"`over: {name}`" for name in GATES)
    print(f"### {CANDIDATES} candidates that are no better: at least one passes, % of years\n")
    print(f"| candidates | rows | {heads} |\n| --- | --- | --- | --- |")
    for kind, shared in KINDS.items():
        for rows in ROWS:
            print(f"| {kind} | {rows} | {' | '.join(_cells(errors(years, rows, shared), years))} |")
    print(f"\n### A better candidate passes, %\n\n| rows | better by | {heads} |\n| --- | --- | --- | --- |")
    for rows in ROWS:
        for gain in GAINS:
            print(f"| {rows} | {gain} | {' | '.join(_cells(power(years, rows, gain), years))} |")
    print(f"\n### Other metrics: one candidate that is no better passes, %\n\n| scores | rows | {heads} |")
    print("| --- | --- | --- | --- |")
    for family in OTHERS:
        print(f"| {family.describe()} | {family.rows} | {' | '.join(_cells(error_of_one(years, family), years))} |")


if __name__ == "__main__":
    main()

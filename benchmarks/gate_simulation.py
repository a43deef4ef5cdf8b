"""How often the gate errs: pairs of models whose true difference is known, judged by the gate's own code.

    python -m benchmarks.gate_simulation [--pairs 2000] [--processes 2] [--only few|equal] [--json FILE]

Each family (benchmarks/gate_families.py) draws the scores of a candidate and a champion on the same rows so that the true
gain in a metric is a given number. Totals, metrics, intervals, tests and verdicts come from the product's code. A gate errs
when it publishes a model whose true gain is not above its bar. It may do so with probability (1 - confidence) / 2 = 2.5%;
for slices, with 1 - confidence = 5% over all of them. The table of two equal models (benchmarks/gate_equal_models.py) has every objective
and metric; it takes a fifth of the pairs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.gate_equal_models import EQUAL, KINDS, ROWS, EqualModels, Kind
from benchmarks.gate_families import FAMILIES, FEW, Accuracy, Family, few, gain_of_counts
from params.schema import ObjectiveChoice
from params.sections.evaluation import Gate
from tasks.evaluation.gate import JudgedModel, gain_passes_bar, judge_candidate
from tasks.evaluation.report import EvaluationDetails, MetricComparison, SliceResult
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Gain, Resampler
from trainer import objectives

GATES = {"no worse (default)": Gate(), "gain: 0.01": Gate(gain=0.01), "margin: 0.01": Gate(margin=0.01)}
ERRORS = {"at the bar": 0.0, "0.005 below it": -0.005, "0.02 below it": -0.02}
POWER = (0.005, 0.01, 0.02, 0.04)


@dataclass(frozen=True)
class Cell:
    """How often one gate publishes candidates of one true gain."""

    family: str
    rows: int
    gate: str
    gain: float
    is_error: bool
    """Whether publishing such a candidate is an error."""
    pairs: int
    published: float


def cells(family: Family, pairs: int, seed: int = 0) -> Iterator[Cell]:
    """Yield the rates of all gates and true gains of a family."""
    errors = ERRORS.values() if family.is_shift or isinstance(family, Accuracy) else [0.0]  # the others take long
    true_gains = {round(gate.bar + below, 3) for gate in GATES.values() for below in errors} | set(POWER)
    common = list(family.gains(pairs, 0.0, seed)) if family.is_shift else []
    for gain in sorted(gain for gain in true_gains if family.allows(gain)):
        observed = [_moved(one, gain) for one in common] or list(family.gains(pairs, gain, seed))
        for name, gate in GATES.items():
            published = sum(
                gain_passes_bar(comparison(family.metric, found, family.rows), gate) for found in observed
            ) / len(observed)
            yield Cell(family.describe(), family.rows, name, gain, gain <= gate.bar, len(observed), published)


def few_rates(place: int, pairs: int, seed: int = 0) -> dict[str, list[float | None]]:
    """Return for each gate how often it publishes a candidate at its bar, by `FEW`; None where no two models can differ by so much.

    `place` is that of the family in `few`.
    """
    found: dict[str, list[float | None]] = {name: [] for name in GATES}
    for family in (few(observations)[place] for observations in FEW):
        common = list(family.gains(pairs, 0.0, seed)) if family.is_shift else []
        for name, gate in GATES.items():
            if not family.allows(gate.bar):
                found[name].append(None)
                continue
            observed = [_moved(one, gate.bar) for one in common] or list(family.gains(pairs, gate.bar, seed))
            passed = sum(gain_passes_bar(comparison(family.metric, one, family.rows), gate) for one in observed)
            found[name].append(passed / len(observed))
    return found


def _moved(gain: Gain, by: float) -> Gain:
    return Gain(gain.value + by, gain.low + by, gain.high + by, gain.p_value, gain.at_most, gain.observations)


def comparison(metric: str, gain: Gain, rows: int) -> MetricComparison:
    """Return a gain as the gate takes it."""
    return MetricComparison(
        against="champion",
        metric=metric,
        gain=gain.value,
        low=gain.low,
        high=gain.high,
        p_value=gain.p_value,
        rows=rows,
    )


@dataclass(frozen=True)
class EqualCell:
    """How often one of two equal models is published over the other."""

    scores: str
    metric: str
    kind: Kind
    rows: int
    pairs: int
    published: float


def equal_cells(models: EqualModels, pairs: int) -> list[EqualCell]:
    """Return the rates of all metrics of a kind of models, rows and ways to draw them."""
    found = []
    for kind in KINDS:
        for rows in ROWS:
            for metric, rate in models.rates(rows, kind, pairs).items():
                found.append(EqualCell(models.title, metric, kind, rows, pairs, rate))
    return found


@dataclass(frozen=True)
class SliceCell:
    """How often a slice stops a candidate that passes otherwise."""

    gate: str
    truth: str
    slices: int
    rows: int
    """Rows of each slice."""
    is_error: bool
    """Whether an alarm is an error."""
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
    """Yield the alarm rates of gates on slices; the models differ on 10% of the rows, or on more where they must."""
    gates = [Gate(slice_margin=0.05, margin=0.5), Gate(slice_floors={"accuracy": 0.8}, margin=0.5)]
    all_rows = comparison("accuracy", gain_of_counts(10, 10, 1000), 1000)
    candidate = JudgedModel(metric="accuracy", metrics={"accuracy": 0.85}, has_champion=True)
    details = EvaluationDetails(
        confidence=0.95,
        resamples=0,
        directions={"accuracy": "max"},
        intervals={},
        comparisons=[all_rows],
        slices=[],
    )
    for rows in (30, 60, 200):
        for truth, (first, others, is_error) in SLICE_TRUTHS.items():
            random = np.random.default_rng([seed, rows, *(ord(letter) for letter in truth)])
            drawn = [
                Accuracy(rows, 0.85, max(0.1, worse)).counts(random, -worse, (pairs, count))
                for worse, count in ((first, 1), (others, slices - 1))
            ]
            counts = np.concatenate(drawn, axis=1)[..., :3].tolist()
            for gate in gates:
                alarms = 0
                for pair in counts:
                    found = [_slice(*one, rows, by_margin=gate.slice_margin is not None) for one in pair]
                    verdict, _ = judge_candidate(gate, candidate, details.model_copy(update={"slices": found}))
                    alarms += verdict != "publish"
                name = "slice_margin: 0.05" if gate.slice_margin else "slice_floors: 0.8"
                yield SliceCell(name, truth, slices, rows, is_error, pairs, alarms / pairs)


@cache
def _slice(only_own: int, only_other: int, both: int, rows: int, *, by_margin: bool) -> SliceResult:
    gain = gain_of_counts(only_own, only_other, rows)
    return SliceResult(
        slice_by="label",
        slice="one",
        rows=rows,
        metric="accuracy",
        value=(only_own + both) / rows,
        low=None,
        high=None,
        champion=(only_other + both) / rows,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        floor_p_value=None if by_margin else _floor_p_value(only_own + both, rows),
        margin_p_value=gain.at_most(-0.05) if by_margin else None,
    )


@cache
def _floor_p_value(right: int, rows: int) -> float:
    learned = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    resampler = Resampler(learned, {"labels": ["a", "b"]}, resamples=200, confidence=0.95, seed=0)
    zeros, predicted = np.zeros(rows), (np.arange(rows) >= right).astype(float)
    scores = RowScores(
        np.arange(rows), {"nll": zeros, "label": zeros, "prediction": predicted, "confidence": zeros + 0.5}
    )
    return resampler.floor_p_values(scores, {"accuracy": 0.8}, {"accuracy": "max"})["accuracy"]


def main() -> None:
    """Run the simulation and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of models for each rate")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--only", choices=("few", "equal"), help="only the table of few rows or groups, or of equal models"
    )
    parser.add_argument("--json", type=Path, help="also write the rates to this file")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of each process
    with ProcessPoolExecutor(arguments.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        families = [] if arguments.only else sorted(FAMILIES, key=lambda one: (one.is_shift, isinstance(one, Accuracy)))
        tasks = {family: pool.submit(list_cells, family, arguments.pairs) for family in families}  # the longest first
        slice_task = None if arguments.only else pool.submit(list_slice_cells, arguments.pairs)
        few_places = [] if arguments.only == "equal" else range(len(few(1)))
        few_tasks = [pool.submit(few_rates, place, arguments.pairs) for place in few_places]
        equal = () if arguments.only == "few" else EQUAL
        equal_tasks = [pool.submit(equal_cells, models, max(arguments.pairs // 5, 1)) for models in equal]
        found = [tasks[family].result() for family in FAMILIES if family in tasks]
        slices = slice_task.result() if slice_task else []
        rates = [task.result() for task in few_tasks]
        equals = [cell for task in equal_tasks for cell in task.result()]
    if found:
        _print_cells(found)
    if rates:
        _print_few(rates)
    if equals:
        print_equal(equals)
    if slices:
        _print_slices(slices)
    if arguments.json:
        every = [asdict(cell) for some in found for cell in some]
        every += [asdict(cell) for cell in slices] + [asdict(cell) for cell in equals]
        arguments.json.write_text(json.dumps(every, indent=1), encoding="utf-8")


def _print_cells(found: list[list[Cell]]) -> None:
    for name, gate in GATES.items():
        true_gains = [*(round(gate.bar + below, 3) for below in ERRORS.values()), *POWER]
        powers = " | ".join(f"better by {gain}" for gain in POWER)
        print(f"\n### {name}: published, % of pairs\n\n| scores | rows | {' | '.join(ERRORS)} | {powers} |")
        print(f"|{' --- |' * (2 + len(ERRORS) + len(POWER))}")
        for family, cells_found in zip(FAMILIES, found, strict=True):
            rates = {round(cell.gain, 3): f"{100 * cell.published:.1f}" for cell in cells_found if cell.gate == name}
            print(f"| {family.describe()} | {family.rows} | {' | '.join(rates.get(gain, '') for gain in true_gains)} |")


def _print_few(rates: list[dict[str, list[float | None]]]) -> None:
    print(
        f"\n### Few rows or groups: published at the bar, % of pairs\n\n| scores | gate | {' | '.join(map(str, FEW))} |"
    )
    print(f"|{' --- |' * (2 + len(FEW))}")
    for family, by_gate in zip(few(1), rates, strict=True):
        shown = {"each": next(iter(by_gate.values()))} if family.is_shift else by_gate
        for name, found in shown.items():
            values = " | ".join("" if rate is None else f"{100 * rate:.1f}" for rate in found)
            print(f"| {family.describe()} | {name} | {values} |")


def print_equal(found: list[EqualCell]) -> None:
    """Print the table of equal models."""
    columns = [(kind, rows) for kind in KINDS for rows in ROWS]
    print("\n### Two equal models: one is published over the other, % of pairs\n")
    print(f"| scores | metric | {' | '.join(f'{kind}, {rows}' for kind, rows in columns)} |")
    print(f"|{' --- |' * (2 + len(columns))}")
    rates = {(cell.scores, cell.metric, cell.kind, cell.rows): f"{100 * cell.published:.1f}" for cell in found}
    for scores, metric in dict.fromkeys((cell.scores, cell.metric) for cell in found):
        values = " | ".join(rates.get((scores, metric, *column), "") for column in columns)
        print(f"| {scores} | {metric} | {values} |")


def _print_slices(slices: list[SliceCell]) -> None:
    print("\n### slices: kept or refused because of one, % of pairs\n\n| gate | truth | slices | rows of each | % |")
    print("| --- | --- | --- | --- | --- |")
    for cell in slices:
        print(f"| {cell.gate} | {cell.truth} | {cell.slices} | {cell.rows} | {100 * cell.alarm:.1f} |")


def list_cells(family: Family, pairs: int) -> list[Cell]:
    """`cells`, as another process can return them."""
    return list(cells(family, pairs))


def list_slice_cells(pairs: int) -> list[SliceCell]:
    """`slice_cells`, as another process can return them."""
    return list(slice_cells(pairs))


if __name__ == "__main__":
    main()

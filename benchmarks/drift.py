"""How often drift is found: new rows that are like the known ones, and new rows that are not in a known way.

    python -m benchmarks.drift ROWS.csv [--text text] [--label category] [--runs 1000] [--processes 2] [--json FILE]

ROWS.csv holds labelled texts, for example those of Banking77. Each run draws known and new rows from it without replacement, so
without a planted change both have the same distribution exactly. All statistics come from the product's code. Without a change, at
most 1 - confidence of the runs may find drift.
"""

from __future__ import annotations

import argparse
import codecs
import csv
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from params.sections.rows import Drift
from tasks.known_rows.profile import DataProfile, measure_sampled_rows
from tasks.known_rows.rows import SampledRows, hashed_ngrams, label_hash
from tasks.measurements.drift.new_rows import compare_with_profile
from tasks.measurements.drift.report import CONFIDENCE_ERROR_SHARE, MeasuredChange
from tasks.multiple_tests import holm_rejections

CONFIDENCES = (0.95, 0.99)
GROUP = 5
"""Rows of a customer, who asks about one thing only."""


@dataclass(frozen=True)
class Row:
    """A labelled text."""

    text: str
    label: str
    group: int = 0


@dataclass(frozen=True)
class Trial:
    """One way to draw rows."""

    name: str
    known: int
    new: int
    share: float = 0.0
    """The share of the new rows that are changed."""
    change: str = ""
    is_grouped: bool = False
    """Whether rows belong together; a group is a row's customer."""
    says_groups: bool = True
    """Whether `data.group_by` says so."""


@dataclass(frozen=True)
class Cell:
    """How often drift is found."""

    trial: Trial
    runs: int
    found: dict[str, float]
    """Share of the runs by confidence, with the default floors."""
    without_floors: dict[str, float]
    by_what: dict[str, float]
    """Share of the runs in which a comparison found something, at 0.95 and with floors."""
    mean_effect: dict[str, float]
    seconds: float
    """How long a run takes."""


NULL = (
    Trial("like the known rows", 2000, 20),
    Trial("like the known rows", 2000, 300),
    Trial("customers with 5 rows each, `group_by`", 2000, 300, is_grouped=True),
    Trial("customers with 5 rows each, not said", 2000, 300, is_grouped=True, says_groups=False),
)
POWER = (
    *(Trial("a new intent", 5000, new, share, "label") for new in (200, 2000) for share in (0.01, 0.02, 0.05)),
    *(Trial("the same without labels", 5000, 2000, share, "intent in text") for share in (0.05, 0.1, 0.2)),
    *(Trial("one intent asked more often", 5000, new, share, "shift") for new in (200, 2000) for share in (0.05, 0.1)),
    *(Trial("texts twice as long", 5000, new, share, "long") for new in (200, 2000) for share in (0.05, 0.1, 0.2)),
    *(Trial("another language", 5000, new, share, "language") for new in (200, 2000) for share in (0.05, 0.1, 0.2)),
)


def draw(trial: Trial, rows: Sequence[Row], random: np.random.Generator) -> tuple[list[Row], list[Row]]:
    """Draw known and new rows."""
    labels = sorted({row.label for row in rows})
    chosen = labels[int(random.integers(len(labels)))]
    rest = (
        [row for row in rows if row.label != chosen] if trial.change in {"label", "intent in text", "shift"} else rows
    )
    if trial.is_grouped:
        customers = _customers(rows, random)
        order = random.permutation(len(customers))[: (trial.known + trial.new) // GROUP]
        drawn = [row for i in order for row in customers[i]]
    else:
        drawn = [rest[i] for i in random.choice(len(rest), trial.known + trial.new, replace=False)]
    known, new = drawn[: trial.known], drawn[trial.known :]
    changed = round(trial.share * trial.new)
    special = [row for row in rows if row.label == chosen]
    if trial.change == "shift":  # known, but rare
        few = min(trial.known // len(labels), len(special) // 2)
        known[:few], special = special[:few], special[few:]
    for i in range(changed):
        new[i] = _CHANGES[trial.change](new[i], special, i)
    return known, new


_CHANGES: dict[str, Callable[[Row, Sequence[Row], int], Row]] = {
    "label": lambda _, special, i: special[i % len(special)],
    "intent in text": lambda _, special, i: special[i % len(special)],
    "shift": lambda _, special, i: special[i % len(special)],
    "long": lambda row, _, __: Row(f"{row.text} {row.text}", row.label, row.group),
    "language": lambda row, _, __: Row(codecs.encode(row.text, "rot13"), row.label, row.group),
}


def _customers(rows: Sequence[Row], random: np.random.Generator) -> list[list[Row]]:
    by_label: dict[str, list[Row]] = {}
    for i in random.permutation(len(rows)):
        by_label.setdefault(rows[i].label, []).append(rows[i])
    found = [of[i : i + GROUP] for of in by_label.values() for i in range(0, len(of) - GROUP + 1, GROUP)]
    return [[Row(row.text, row.label, number) for row in one] for number, one in enumerate(found)]


def sampled(rows: Sequence[Row], random: np.random.Generator, *, has_groups: bool, has_labels: bool) -> SampledRows:
    """Return rows as the product samples them, with a number that says nothing."""
    return SampledRows(
        np.arange(len(rows)),
        np.array([row.group for row in rows], np.uint64) if has_groups else None,
        {"label": [[row.label] for row in rows]} if has_labels else {},
        {"text": np.array([len(row.text) for row in rows], float)},
        {"amount": random.lognormal(size=len(rows))},
        [_features(row.text) for row in rows],
    )


@lru_cache(maxsize=50_000)
def _features(text: str) -> list[int]:
    return hashed_ngrams([text])


def one_run(trial: Trial, rows: Sequence[Row], seed: int) -> list[MeasuredChange]:
    """Draw rows once and compare them."""
    random = np.random.default_rng([seed, trial.known, trial.new])
    has = {"has_groups": trial.is_grouped and trial.says_groups, "has_labels": trial.change != "intent in text"}
    known, new = (sampled(drawn, random, **has) for drawn in draw(trial, rows, random))
    labels = {column: {label_hash(label): 1 for (label,) in found} for column, found in known.labels.items()}
    profile = DataProfile(
        rows=trial.known,
        content=[],
        is_whole=True,
        known=np.empty(0, np.uint64),
        labels=labels,
        samples=tuple(measure_sampled_rows(known)),
    )
    return [finding.change for finding in compare_with_profile(profile, new, Drift(confidence=max(CONFIDENCES)), seed)]


def moved(changes: Sequence[MeasuredChange], confidence: float, *, floors: bool = True) -> list[str]:
    """Return what moved at a confidence."""
    rejected = holm_rejections([change.p_value for change in changes], (1 - confidence) * (1 - CONFIDENCE_ERROR_SHARE))
    pairs = zip(changes, rejected, strict=True)
    return [change.what for change, moves in pairs if moves and (not floors or change.effect >= change.floor)]


def cell(trial: Trial, found: Sequence[Sequence[MeasuredChange]], seconds: float) -> Cell:
    """Count the runs of one trial."""
    whats = [change.what for change in found[0]]
    at_default = [moved(changes, 0.95) for changes in found]
    return Cell(
        trial,
        len(found),
        {f"{c}": float(np.mean([bool(moved(one, c)) for one in found])) for c in CONFIDENCES},
        {f"{c}": float(np.mean([bool(moved(one, c, floors=False)) for one in found])) for c in CONFIDENCES},
        {what: float(np.mean([what in one for one in at_default])) for what in whats},
        {
            what: float(np.mean([one.effect for changes in found for one in changes if one.what == what]))
            for what in whats
        },
        seconds,
    )


def read(path: Path, text: str, label: str) -> list[Row]:
    """Read the rows, without repeated texts."""
    with path.open(newline="", encoding="utf-8") as file:
        return list({row[text]: Row(row[text], row[label]) for row in csv.DictReader(file)}.values())


def measured(trials: Iterable[Trial], rows: Sequence[Row], runs: int, processes: int) -> Iterable[Cell]:
    """Yield the rates of each trial."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        for trial in trials:
            start = time.monotonic()
            found = list(pool.map(partial(one_run, trial, rows), range(runs), chunksize=10))
            yield cell(trial, found, (time.monotonic() - start) * processes / runs)


def line(one: Cell) -> str:
    """Return a line of the table."""
    trial = one.trial
    rates = []
    for rate in (one.found["0.95"], one.found["0.99"], one.without_floors["0.95"], one.without_floors["0.99"]):
        error = 100 * np.sqrt(rate * (1 - rate) / one.runs)
        rates.append(f"{100 * rate:.1f} ± {error:.1f} %")
    what = ", ".join(f"{name} {100 * rate:.0f} %" for name, rate in one.by_what.items() if rate >= 0.01) or "nothing"
    share = f" {100 * trial.share:g} %" if trial.share else ""
    return f"| {trial.name}{share} | {trial.known:,} | {trial.new:,} | {' | '.join(rates)} | {what} | {one.seconds:.2f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="category")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--power-runs", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = read(given.rows, given.text, given.label)
    heading = "| new rows | known | new | found, 0.95 | 0.99 | without floors, 0.95 | 0.99 | by | time |"
    print(f"{len(rows)} rows\n{heading}\n|{' --- |' * 9}", flush=True)
    cells = []
    for trials, runs in ((NULL, given.runs), (POWER, given.power_runs)):
        if not runs:
            continue
        for one in measured(trials, rows, runs, given.processes):
            print(line(one), flush=True)
            cells.append(asdict(one))
            if given.json:
                given.json.write_text(json.dumps(cells, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""How often the published model is called less sure of new rows that are like the held-out ones, and of others.

    python -m benchmarks.drift_confidence ROWS.csv [--text text] [--label category] [--runs 1000] [--json FILE]

ROWS.csv holds labelled texts, for example those of Banking77. A logistic regression on TF-IDF stands in for the published
model: it learns from half of the rows, without those of one label. Each run draws held-out and new rows from the other
half without replacement, so without a planted change both have the same distribution exactly. The comparison is the
product's. Without a change, at most a tenth of 1 - confidence of the runs may call the model less sure.
"""

from __future__ import annotations

import argparse
import codecs
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from benchmarks.drift import CONFIDENCES, read
from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowScores
from tasks.measurements.drift.confidence import compare_champion_confidence
from tasks.measurements.drift.report import CONFIDENCE_ERROR_SHARE, DriftReport
from trainer import objectives

MODELS = 5
"""Each with another label withheld."""
HELD_OUT = 1000


@dataclass(frozen=True)
class Trial:
    """One way to draw new rows."""

    name: str
    new: int
    share: float = 0.0
    """The share of the new rows that are changed."""


TRIALS = (
    *(Trial("like the held-out rows", new) for new in (20, 300, 1000)),
    *(Trial("a new intent", new, share) for new in (200, 1000) for share in (0.05, 0.1, 0.2)),
    *(Trial("another language", new, share) for new in (200, 1000) for share in (0.05, 0.1, 0.2)),
)


@dataclass(frozen=True)
class Cell:
    """How often the model is called less sure."""

    trial: Trial
    runs: int
    found: dict[str, float]
    """Share of the runs by confidence, with the default floor."""
    without_floor: dict[str, float]
    mean_fall: float


@dataclass(frozen=True)
class Confidences:
    """How sure a model is of rows that it did not learn from, by kind of row."""

    alike: Sequence[float]
    changed: dict[str, Sequence[float]]


def confidences(rows: Path, text: str, label: str, seed: int) -> Confidences:
    """Teach a model, with one label withheld, and ask it."""
    random = np.random.default_rng(seed)
    found = read(rows, text, label)
    labels = sorted({row.label for row in found})
    withheld = labels[int(random.integers(len(labels)))]
    others = [row for row in found if row.label != withheld]
    order = random.permutation(len(others))
    known, rest = ([others[i] for i in half] for half in np.array_split(order, 2))
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=30, max_iter=200))
    model.fit([row.text for row in known], [row.label for row in known])

    def ask(texts: Sequence[str]) -> Sequence[float]:
        return list(model.predict_proba(texts).max(axis=1))

    unseen = [row.text for row in rest]
    changed = {
        "a new intent": ask([row.text for row in found if row.label == withheld]),
        "another language": ask([codecs.encode(one, "rot13") for one in unseen]),
    }
    return Confidences(ask(unseen), changed)


def one_run(trial: Trial, of: Confidences, seed: int) -> tuple[float, float, float]:
    """Return the p-value, the fall of the mean and its floor of one draw."""
    random = np.random.default_rng(seed)
    drawn = random.permutation(of.alike)
    held_out, new = drawn[:HELD_OUT], drawn[HELD_OUT : HELD_OUT + trial.new].copy()
    if trial.share:
        count = round(trial.share * trial.new)
        new[:count] = random.choice(of.changed[trial.name], count)
    classifier = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
    drift = DriftReport(status="compared", repo_id="", confidence=max(CONFIDENCES))
    sides = (RowScores(np.arange(len(side)), {"confidence": side}) for side in (held_out, new))
    change = compare_champion_confidence(classifier, drift, *sides, split="test", seed=seed).change
    assert change is not None
    return change.p_value, change.effect, change.floor


def cell(trial: Trial, models: Sequence[Confidences], runs: int) -> Cell:
    """Count the runs of one trial."""
    found = np.array([one_run(trial, models[seed % len(models)], seed) for seed in range(runs)])
    p_values, falls, floors = found.T
    rejected = {f"{c}": p_values <= (1 - c) * CONFIDENCE_ERROR_SHARE for c in CONFIDENCES}
    return Cell(
        trial,
        runs,
        {c: float(np.mean(of & (falls >= floors))) for c, of in rejected.items()},
        {c: float(np.mean(of & (falls > 0))) for c, of in rejected.items()},
        float(falls.mean()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="category")
    parser.add_argument("--runs", type=int, default=1000, help="of each trial without a change; a fifth of the others")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    models = [confidences(arguments.rows, arguments.text, arguments.label, seed) for seed in range(MODELS)]
    print(f"mean confidence: {', '.join(f'{np.mean(one.alike):.3f}' for one in models)}\n")
    heads = " | ".join(f"found, {c}" for c in CONFIDENCES) + " | " + " | ".join(f"no floor, {c}" for c in CONFIDENCES)
    print(f"| new rows | of the new rows | new | {heads} | mean fall |\n|{' --- |' * (4 + 2 * len(CONFIDENCES))}")
    cells = []
    for trial in TRIALS:
        one = cell(trial, models, arguments.runs if not trial.share else arguments.runs // 5)
        rates = [*one.found.values(), *one.without_floor.values()]
        shown = (f"{100 * rate:.1f} ± {100 * (rate * (1 - rate) / one.runs) ** 0.5:.1f}%" for rate in rates)
        print(
            f"| {trial.name} | {trial.share:.0%} | {trial.new:,} | {' | '.join(shown)} | {one.mean_fall:.3f} |",
            flush=True,
        )
        cells.append(asdict(one))
    if arguments.json:
        arguments.json.write_text(json.dumps(cells, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

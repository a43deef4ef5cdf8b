"""Rows that decide: those with much of the weight are named, in every metric that is weighted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from params.schema import ObjectiveChoice
from params.sections.evaluation import Gate
from tasks.evaluation import gate
from tasks.evaluation.analysis import EvaluationAnalysis
from tasks.evaluation.heavy_rows import find_heavy_rows
from tasks.evaluation.report import MetricComparison
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from tests.support.tiny_releases import KINDS
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions

ROWS, HEAVY = 60, 17
STATE = {"labels": ["a", "b"]}
WEIGHTED = {
    "causal_lm": ("loss", "token_accuracy", "bits_per_byte"),
    "sft": ("loss", "token_accuracy", "bits_per_byte"),
    "masked_lm": ("loss", "token_accuracy", "bits_per_byte"),
    "seq2seq": ("loss", "token_accuracy", "bits_per_byte"),
    "token_classification": ("loss", "token_accuracy", "precision", "recall", "f1"),
    "multi_label_classification": ("micro_f1",),
}


def build(name: str) -> Any:
    options = {"prompt_column": "p", "completion_column": "c"} if name == "sft" else {}
    options = {"input_column": "p", "target_column": "c"} if name == "seq2seq" else options
    return objectives.build_objective(ObjectiveChoice(name=name, **options))


def scores_of(name: str, seed: int = 0) -> dict[str, Any]:
    """Scores of rows with different weights."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(5, 30, ROWS).astype(float)
    found = {"nll": tokens * draw.gamma(2, 1, ROWS), "tokens": tokens, "correct": np.floor(tokens * draw.random(ROWS))}
    if name == "multi_label_classification":
        given, predicted = (draw.random((2, ROWS, 2)) < 0.5).astype(float)
        given[:, 0] = 1  # each row has a metric of its own
        columns = {"nll": draw.gamma(2, 1, ROWS), "agreement": draw.random(ROWS)}
        for what, table in (("given", given), ("probability", predicted), ("predicted", predicted)):
            columns |= {f"{what} {label}": table[:, i] for i, label in enumerate(STATE["labels"])}
        return columns
    if name == "token_classification":
        actual, predicted = draw.integers(1, 9, (2, ROWS)).astype(float)
        correct = np.floor(np.minimum(actual, predicted) * draw.random(ROWS))
        return found | {"correct_spans": correct, "predicted_spans": predicted, "actual_spans": actual}
    return {
        **{score: np.zeros(ROWS) for score in build(name).score_names(STATE)},
        **found,
        "bytes": draw.integers(5, 120, ROWS).astype(float),
    }


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_weighted_metric_is_the_mean_of_its_rows_by_their_weights(name) -> None:
    objective, columns = build(name), scores_of(name)
    statistics = objective.additive_statistics(columns, STATE)
    whole, each = (objective.compute_metrics(totals, STATE) for totals in (statistics.sum(0), statistics))
    for metric in WEIGHTED[name]:
        weights = objective.metrics[metric].row_weights(columns)
        assert np.average(each[metric], weights=weights) == pytest.approx(float(whole[metric])), metric


def test_every_objective_that_counts_tokens_or_spans_has_weights() -> None:
    for _, sections in KINDS.values():
        choice = ObjectiveChoice(**sections.get("objective", {"name": "causal_lm"}))
        names = objectives.build_objective(choice).score_names(STATE)
        counts = [name for name in names if name == "tokens" or name.endswith("_spans")]
        assert not counts or choice.name in WEIGHTED, (choice.name, counts)


def compared(name: str, metric: str, *, groups: Any = None) -> MetricComparison:
    """A candidate that is a little better on all rows, of which one has a third of the weight."""
    objective, own = build(name), scores_of(name)
    weights = objective.metrics[metric].row_weights(own)
    factor = 0.5 * (weights.sum() - weights[HEAVY]) / weights[HEAVY]
    for score in own:
        own[score][HEAVY] *= factor
    other = {score: values.copy() for score, values in own.items()}
    other[next(iter(own))] = other[next(iter(own))] * np.random.default_rng(1).uniform(0.9, 1.1, ROWS)
    resampler = Resampler(objective, STATE, resamples=100, confidence=0.95, seed=1)
    plan: Any = SimpleNamespace(
        resampler=resampler,
        directions=directions(objective.metrics),
        learned={"model": [], "champion": []},
        learned_by_candidate=0,
        can_compare=lambda _: True,
    )
    ids = np.arange(ROWS) + 100
    both = (RowScores(ids, columns, groups) for columns in (own, other))
    found = EvaluationAnalysis(plan, {})._compare(*both, "champion")
    return next(one for one in found if one.metric == metric)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        (name, metric)
        for name, metrics in WEIGHTED.items()
        for metric in metrics
        if name != "multi_label_classification"
    ],
)
def test_a_row_with_a_third_of_the_weight_is_named(name, metric) -> None:
    (heavy,) = compared(name, metric).heavy
    assert (heavy.row_id, heavy.rows) == (100 + HEAVY, 1)
    assert heavy.share == pytest.approx(1 / 3)


def test_the_gate_says_which_row_decides() -> None:
    one = compared("causal_lm", "token_accuracy").model_copy(update={"gain": 0.01, "low": -0.1, "high": 0.1})
    told = gate.comparison_sentence(one, Gate())
    assert told.endswith(
        "; few rows decide token_accuracy: row 117 has 33.3% of the weight of 60 rows: look at these, add rows, or cut long ones"
    )
    assert "decide" not in gate.comparison_sentence(one.model_copy(update={"heavy": []}), Gate())


def test_of_a_group_all_rows_count_together() -> None:
    groups = np.arange(ROWS) // 2
    (heavy,) = compared("causal_lm", "loss", groups=groups).heavy
    assert (heavy.row_id, heavy.rows) == (100 + HEAVY, 2)
    assert heavy.sentence.startswith("row 117 and 1 more of its group have 3")


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ([1.0] * 60, 0),
        ([1.0] * 4, 0),  # each has a quarter: of four rows none decides
        ([0.0] * 60, 0),
        ([100.0, 50.0, *[1.0] * 58], 2),
        ([1.0] * 59 + [5.0], 0),
    ],
)
def test_rows_decide_that_have_much_more_than_others(weights, named) -> None:
    scores = RowScores(np.arange(len(weights)), {}, None)
    found = find_heavy_rows(np.array(weights), scores)
    assert len(found) == named
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)


def test_without_weights_no_row_decides() -> None:
    assert find_heavy_rows(None, RowScores(np.arange(3), {}, None)) == []

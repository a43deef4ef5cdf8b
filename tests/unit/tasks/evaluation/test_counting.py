"""Which rows a metric is about: only these are observations, of which an interval needs some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.gate_equal_models import COMPUTED_ALIKE, EQUAL, Draw, EqualModels
from params.schema import ObjectiveChoice
from tasks.evaluation.report import MetricComparison
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions
from trainer.objectives.bases.metrics.retrieval import NAMES


def test_every_objective_is_simulated() -> None:
    simulated = {models.objective for models in EQUAL}
    assert simulated | COMPUTED_ALIKE.keys() == {*objectives.objective_names()}
    assert {*COMPUTED_ALIKE.values()} <= simulated


@pytest.mark.parametrize("models", EQUAL, ids=lambda one: one.title)
def test_a_row_counts_exactly_in_the_metrics_that_depend_on_it(models: EqualModels) -> None:
    """Added to other rows, which are no better on average nor worse, a row moves these metrics, and no others."""
    objective, random = models.build(), np.random.default_rng(0)
    columns, _ = models.models(Draw(random, 60, "independent rows"))
    rows = objective.additive_statistics(columns, models.state)
    if models.objective == "embedding" and objective.group_score:
        rows[:, len(NAMES) + 1 :] = 0.0  # what rows change as documents
    moved: dict[str, Any] = {}
    for _ in range(8):
        others = rows.sum(0) * random.uniform(1, 1.01, rows.shape[1]) + random.uniform(0, 0.1, rows.shape[1])
        alone = objective.compute_metrics(others, models.state)
        for metric, values in objective.compute_metrics(others + rows, models.state).items():
            moved[metric] = moved.get(metric, False) | (values != alone[metric])
    for metric, has_moved in moved.items():
        counts = objective.metrics[metric].counted(objective.sums(rows, models.state))
        if models.objective == "ranking" and metric != "loss":  # the first row of a query stands for it
            assert counts.sum() == len(np.unique(columns["query"][columns["relevance"] > 0]))
        assert np.array_equal(counts, has_moved), metric


def embedded(seed: int, counted: int) -> RowScores:
    """100 queries, of which few have a relevant document."""
    draw, rows = np.random.default_rng(seed), 100
    has_relevant = np.arange(rows) < counted
    columns = {name: np.where(has_relevant, draw.random(rows), 0.0) for name in NAMES}
    columns |= {f"{name} without its documents": np.zeros(rows) for name in (*NAMES, "counted")}
    columns |= {"counted": has_relevant.astype(float), "cosine": np.zeros(rows), "query": np.arange(float(rows))}
    return RowScores(np.arange(rows), columns, np.arange(rows))


@pytest.mark.parametrize("counted", [0, 1, 5, 6])
def test_queries_without_a_relevant_document_are_no_observations(counted: int) -> None:
    objective = objectives.build_objective(ObjectiveChoice(name="embedding"))
    resampler = Resampler(objective, {}, resamples=200, confidence=0.95, seed=0)
    own, other = embedded(0, counted), embedded(1, counted)
    gain = resampler.gains(own, other, directions(objective.metrics))["ndcg_at_10"]
    assert gain.observations == counted
    assert np.isfinite([gain.low, gain.high]).tolist() == [counted >= 6] * 2
    assert np.isfinite(resampler.intervals(own)["ndcg_at_10"]).all() == (counted >= 6)
    p_values = resampler.floor_p_values(own, {"ndcg_at_10": 1.0}, directions(objective.metrics))
    assert (p_values["ndcg_at_10"] == 1.0) == (counted < 6)


def test_texts_without_spans_are_no_observations_of_their_f1() -> None:
    objective = objectives.build_objective(ObjectiveChoice(name="token_classification"))
    state = {"labels": ["O", "B-a", "I-a"]}
    draw, rows = np.random.default_rng(0), 80

    def scores(found: int) -> RowScores:
        spans = np.where(np.arange(rows) < 5, 2.0, 0.0)
        right = np.minimum(np.where(np.arange(rows) < found, 2.0, 0.0), spans)
        columns = {"nll": draw.random(rows), "tokens": np.full(rows, 9.0), "correct": np.full(rows, 9.0)}
        columns |= {"correct_spans": right, "predicted_spans": right, "actual_spans": spans}
        return RowScores(np.arange(rows), columns)

    resampler = Resampler(objective, state, resamples=200, confidence=0.95, seed=0)
    gains = resampler.gains(scores(5), scores(1), directions(objective.metrics))
    assert {name: one.observations for name, one in gains.items()} == {
        "loss": rows,
        "token_accuracy": rows,
        "precision": 5,
        "recall": 5,
        "f1": 5,
    }
    assert gains["f1"].low == gains["recall"].low == -np.inf
    assert np.isfinite(gains["loss"].low)


def test_the_reason_says_how_many_count() -> None:
    made: dict[str, Any] = {"against": "champion", "metric": "ndcg_at_10", "gain": 0.2, "p_value": None, "rows": 100}
    one = MetricComparison(**made, low=-np.inf, high=np.inf, groups=100, counted=5)
    assert one.too_few(0.95) == (
        "5 of 100 groups (100 rows) that count in it cannot show it: a 95% interval needs at least 6"
    )
    assert not MetricComparison(**made, low=0.1, high=0.3, groups=100, counted=6).too_few(0.95)

"""Metrics of groups of rows and of whole splits: their values, intervals, gains, and what is resampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowScores, resampling_units
from tasks.evaluation.statistics import Resampler
from tests.support import new_objectives
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions

with new_objectives.known():
    RANKING = objectives.build_objective(ObjectiveChoice(name="first_relevant"))
    SIMILARITY = objectives.build_objective(ObjectiveChoice(name="similarity"))


def resampler(objective: Any, resamples: int = 200) -> Resampler:
    return Resampler(objective, {}, resamples=resamples, confidence=0.9, seed=1)


def ranked(queries: int, skill: float, seed: int = 0, documents: int = 4) -> RowScores:
    """Each query has one relevant document; the rows are in any order."""
    rows, draw = queries * documents, np.random.default_rng(seed)
    order = np.random.default_rng(5).permutation(rows)
    query, relevant = order // documents + 100.0, (order % documents == 0).astype(float)
    score = draw.normal(size=rows) + skill * relevant
    columns = {"nll": np.abs(score), "score": score, "relevant": relevant, "query": query}
    return RowScores(np.arange(rows), columns, resampling_units(None, query))


def paired(rows: int, noise: float, seed: int = 0) -> RowScores:
    given = np.random.default_rng(7).random(rows)
    predicted = given + noise * np.random.default_rng(seed).normal(size=rows)
    return RowScores(np.arange(rows), {"error": (predicted - given) ** 2, "predicted": predicted, "given": given})


def test_metric_of_groups_is_the_mean_over_groups_whatever_the_order_of_rows() -> None:
    scores = ranked(60, 1.0)
    ranks = []
    for query in np.unique(scores.columns["query"]):
        own = {name: column[scores.columns["query"] == query] for name, column in scores.columns.items()}
        ranks.append(1 / (1 + (own["score"] > own["score"][own["relevant"] == 1]).sum()))
    assert resampler(RANKING).metrics(scores)["reciprocal_rank"] == pytest.approx(np.mean(ranks))


def test_groups_are_resampled_and_not_rows() -> None:
    scores = ranked(60, 1.0)
    (found,) = resampler(RANKING, 2000).resample([scores])
    alone = ranked(60, 1.0)
    per_query = RANKING.statistics(alone.columns, {})["reciprocal ranks"]
    ranks = per_query[per_query > 0]
    assert scores.observations == len(ranks) == 60
    assert found["reciprocal_rank"].std() == pytest.approx(ranks.std() / 60**0.5, rel=0.1)
    gains = resampler(RANKING).gains(ranked(60, 3.0, 1), scores, directions(RANKING.metrics))
    assert gains["reciprocal_rank"].low > 0
    assert gains["reciprocal_rank"].p_value is None


def test_rows_are_one_unit_if_either_a_column_or_a_query_joins_them() -> None:
    customers, queries = np.array([0, 0, 1, 2, 3]), np.array([7.0, 8.0, 8.0, 9.0, 9.0])
    assert resampling_units(None, None) is None
    assert resampling_units(customers, None) is customers
    joined = resampling_units(customers, queries)
    assert joined is not None
    assert len(set(joined[:3])) == len(set(joined[3:])) == 1
    assert joined[0] != joined[3]


def test_metric_of_a_whole_split_is_computed_again_on_each_resample() -> None:
    scores = paired(80, 0.3)
    expected = spearmanr(scores.columns["predicted"], scores.columns["given"]).statistic
    own = resampler(SIMILARITY)
    assert own.metrics(scores)["rank_correlation"] == pytest.approx(expected)
    (found,) = own.resample([scores])
    assert len(found["rank_correlation"]) == len(found["loss"]) == 200
    assert np.abs(found["rank_correlation"].mean() - expected) < 0.05
    assert 0.005 < found["rank_correlation"].std() < 0.2
    low, high = own.interval(found["rank_correlation"], scores.observations)
    assert low < expected < high


@pytest.mark.parametrize("rows", [80, 1300])
def test_gain_in_a_metric_of_a_whole_split_has_an_interval(rows: int) -> None:
    gains = resampler(SIMILARITY, 50).gains(paired(rows, 0.1, 1), paired(rows, 0.6, 2), directions(SIMILARITY.metrics))
    none = resampler(SIMILARITY, 50).gains(paired(rows, 0.3, 1), paired(rows, 0.3, 2), directions(SIMILARITY.metrics))
    assert gains["rank_correlation"].low > 0
    assert none["rank_correlation"].low < 0 < none["rank_correlation"].high
    assert gains["rank_correlation"].at_most(1.0) < 0.01

"""Ranks and rank correlation against scipy, with equal numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from trainer.objectives.bases.metrics.rank_correlation import mean_ranks, rank_distance, spearman


@pytest.mark.parametrize(
    "values",
    [[], [3.0], [2.0, 2.0], [1.0, 2.0, 2.0, 0.5, 2.0], [-0.0, 0.0, 1.0], [math.inf, -math.inf, 0.0, math.inf]],
    ids=str,
)
def test_equal_numbers_have_the_mean_of_their_ranks(values) -> None:
    assert mean_ranks(np.array(values)).tolist() == scipy.stats.rankdata(values).tolist()


@pytest.mark.parametrize("different", [1, 2, 5, 40, 10**6])
def test_ranks_are_those_of_scipy(different) -> None:
    for seed in range(20):
        draw = np.random.default_rng([seed, different])
        first, second = draw.integers(0, different, (2, 37)) / 7
        ranks = [scipy.stats.rankdata(one) for one in (first, second)]
        assert mean_ranks(first).tolist() == ranks[0].tolist()
        assert rank_distance(first, second).tolist() == np.abs(ranks[0] - ranks[1]).tolist()
        if different > 1:
            assert spearman(first, second) == pytest.approx(scipy.stats.spearmanr(first, second).statistic)

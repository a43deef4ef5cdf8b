"""A permutation that is computed has each number once, and looks like one that is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trainer.data.order import ComputedPermutation


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097])
def test_each_number_is_there_once(count: int) -> None:
    for seed in (0, 1, 2**63 - 1):
        found = ComputedPermutation(count, seed).at(np.arange(count))
        assert sorted(found.tolist()) == list(range(count))


def test_it_follows_from_the_seed_and_any_part_can_be_read() -> None:
    made = ComputedPermutation(10**12, 3)
    places = np.array([0, 5, 10**12 - 1])
    assert made.at(places).tolist() == ComputedPermutation(10**12, 3).at(places).tolist()
    assert made.at(places[1:2]).tolist() == made.at(places)[1:2].tolist()
    assert made.at(places).tolist() != ComputedPermutation(10**12, 4).at(places).tolist()
    assert len(made) == 10**12


@pytest.mark.parametrize("count", [5, 1000])
def test_it_looks_like_one_that_is_drawn(count: int) -> None:
    """Over 2,000 seeds, each number is as often at the first and at the last place as any other, and neighbours are independent."""
    orders = np.array([ComputedPermutation(count, seed).at(np.arange(count)) for seed in range(2000)])
    for place in (0, count - 1):
        assert stats.chisquare(np.bincount(orders[:, place], minlength=count)).pvalue > 1e-4
    expected = -1 / (count - 1)  # of two different numbers below `count`
    assert np.corrcoef(orders[:, 0], orders[:, 1])[0, 1] == pytest.approx(expected, abs=0.09)


def test_neighbouring_seeds_give_unlike_permutations() -> None:
    one, two = (ComputedPermutation(5000, seed).at(np.arange(5000)) for seed in (7, 8))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.06
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.06

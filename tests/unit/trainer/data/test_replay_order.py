"""New and known rows in each global batch: exact shares, each row as often as the others, a function of seed and position."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from trainer.data.order import KnownRows, ReplayOrder


def replay(new: int, known: int, share: float = 0.5) -> KnownRows:
    """New and known rows alternate, as far as there are both."""
    places = np.random.default_rng(0).permutation(new + known)
    return KnownRows(places >= new, share)


def epoch(rows: KnownRows, number: int, *, size: int = 8, seed: int = 3, **more: Any) -> list[list[int]]:
    """The global batches of an epoch."""
    order = ReplayOrder(rows, seed=seed, global_batch_size=size, **more)
    found = order.rows(number).tolist()
    assert len(found) == order.batches * size
    return [found[i : i + size] for i in range(0, len(found), size)]


@pytest.mark.parametrize(("share", "known"), [(0.5, 4), (0.25, 2), (0.9, 7), (0.01, 1), (0.99, 7)])
def test_each_global_batch_has_its_share_of_known_rows(share: float, known: int) -> None:
    rows = replay(40, 100, share)
    batches = [batch for number in range(3) for batch in epoch(rows, number)]
    assert {int(rows.known[batch].sum()) for batch in batches} == {known}
    assert all(len(set(batch)) == 8 for batch in epoch(replay(40, 100), 0))


def test_an_epoch_goes_once_through_the_new_rows_and_all_rows_of_a_kind_come_equally_often() -> None:
    rows = replay(42, 10)
    assert len(epoch(rows, 0)) == 42 // 4
    new = Counter(row for batch in epoch(rows, 0) for row in batch if not rows.known[row])
    assert set(new.values()) == {1}
    assert len(new) == 40
    every = Counter(row for number in range(21) for batch in epoch(rows, number) for row in batch)
    assert {every[row] for row in np.flatnonzero(~rows.known)} == {20}  # 840 places of 42 rows
    assert {every[row] for row in np.flatnonzero(rows.known)} == {84}


def test_few_new_rows_are_repeated_within_a_global_batch() -> None:
    (batch,) = epoch(replay(3, 50), 0)
    assert len(batch) == 8


def test_order_follows_from_seed_and_epoch() -> None:
    rows = replay(40, 60)
    assert epoch(rows, 1) == epoch(rows, 1)
    assert epoch(rows, 1) != epoch(rows, 0)
    assert epoch(rows, 1) != epoch(rows, 1, seed=4)


def test_rows_of_similar_length_share_a_global_batch() -> None:
    rows, lengths = replay(400, 400), np.random.default_rng(1).integers(1, 100, 800)
    batches = epoch(rows, 0, lengths=lengths)
    assert {int(rows.known[batch].sum()) for batch in batches} == {4}
    spread = [np.ptp(lengths[[row for row in batch if not rows.known[row]]]) for batch in batches]
    plain = [np.ptp(lengths[[row for row in batch if not rows.known[row]]]) for batch in epoch(rows, 0)]
    assert np.mean(spread) < np.mean(plain) / 5
    longest = [max(lengths[batch]) for batch in batches]
    assert longest != sorted(longest, reverse=True)  # in random order

"""Randomness that follows from a key."""

from __future__ import annotations

import contextlib
import random
import zlib

import numpy as np
import torch

from trainer.data.randomness import seeded


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw():
    return random.random(), *np.random.standard_normal(2), torch.rand(1).item()


def test_block_draws_what_its_key_says():
    seed_all(zlib.crc32(repr(("rows", 3)).encode()))
    expected = draw(), draw()
    seed_all(0)
    with seeded("rows", 3):
        assert (draw(), draw()) == expected


def test_states_go_on_after_a_block_and_a_block_within_it():
    seed_all(5)
    expected = [draw() for _ in range(3)]
    with seeded("inner"):
        inner = draw()
    seed_all(5)
    found = [draw()]
    with seeded("outer"):
        outside = [draw()]
        with seeded("inner"):
            assert draw() == inner
        outside.append(draw())
    found.append(draw())
    with seeded("outer"):
        assert [draw(), draw()] == outside
    assert [*found, draw()] == expected


def test_states_go_on_after_an_error():
    seed_all(5)
    expected = draw()
    seed_all(5)
    with contextlib.suppress(ZeroDivisionError), seeded("fails"):
        _ = 1 / 0
    assert draw() == expected

"""Randomness that follows from a key, whatever the number of processes and of interruptions."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def seeded(*key: object) -> Iterator[None]:
    """Seed Python, NumPy and torch with `key` for a block, and restore their states afterwards.

    Every micro-batch uses this, so it sets the generators directly: torch.random.fork_rng and torch.manual_seed take
    several times as long.
    """
    seed = zlib.crc32(repr(key).encode())
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    python, numpy = random.getstate(), np.random.get_state()
    states = [generator.get_state() for generator in generators]
    random.seed(seed)
    np.random.seed(seed)
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

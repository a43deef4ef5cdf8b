"""Randomness that follows from a key, whatever the number of processes and of interruptions."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

_spare: list[np.random.BitGenerator] = []
"""Bit generators of blocks that have ended, for later blocks."""


@contextlib.contextmanager
def seeded(*key: object) -> Iterator[None]:
    """Seed Python, NumPy and torch with `key` for a block, and restore their states afterwards.

    Every micro-batch uses this three times, so it sets the generators directly: torch.random.fork_rng and
    torch.manual_seed take several times as long. NumPy takes 100 us to save and restore a state; here it draws from another
    generator meanwhile, and only forgets the second number of a pair of normal ones.
    """
    seed = zlib.crc32(repr(key).encode())
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    python, numpy = random.getstate(), get_bit_generator()
    states = [generator.get_state() for generator in generators]
    random.seed(seed)
    own = _spare.pop() if _spare else np.random.MT19937()
    set_bit_generator(own)
    np.random.seed(seed)
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        set_bit_generator(numpy)
        _spare.append(own)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

"""Randomness that a key determines: not the number of processes, nor how often a run was interrupted."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def seeded(*key: object) -> Iterator[None]:
    """Run a block under the random state of `key` (Python, NumPy, torch), and leave the surrounding state as it was."""
    seed = zlib.crc32(repr(key).encode())
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)

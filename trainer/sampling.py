"""The order of the rows, as a function of seed and epoch alone: not of the number of processes, nor of any resume."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class EpochSampler(Sampler[int]):
    """A permutation of the rows per epoch, cut to whole global batches.

    The rows that are left over differ from epoch to epoch; dropping them gives every optimizer step the same number of
    sequences, on any number of processes.

    Args:
        rows: how many rows there are.
        seed: the recipe's seed.
        global_batch_size: sequences per optimizer step.
    """

    def __init__(self, rows: int, *, seed: int, global_batch_size: int) -> None:
        self._rows = rows
        self._seed = seed
        self._length = rows // global_batch_size * global_batch_size
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iteration."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self._epoch) % 2**63)
        yield from torch.randperm(self._rows, generator=generator)[: self._length].tolist()

"""The order of the rows, as a function of seed and epoch alone: not of the number of processes, nor of any resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

_POOL = 50
"""Global batches whose sequences are sorted by length together: enough to save the padding, and still random."""


class EpochSampler(Sampler[int]):
    """A permutation of the rows per epoch, cut to whole global batches.

    The rows that are left over differ from epoch to epoch; dropping them gives every optimizer step the same number of
    sequences, on any number of processes.

    Args:
        rows: how many rows there are.
        seed: the recipe's seed.
        global_batch_size: sequences per optimizer step.
        lengths: tokens of each row; when given, a global batch holds sequences of about the same length, and the order
            of the batches is random.
    """

    def __init__(self, rows: int, *, seed: int, global_batch_size: int, lengths: Sequence[int] | None = None) -> None:
        self._rows = rows
        self._seed = seed
        self._batch = global_batch_size
        self._lengths = lengths
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iteration."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._rows // self._batch * self._batch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self._epoch) % 2**63)
        order = torch.randperm(self._rows, generator=generator)[: len(self)].tolist()
        if self._lengths is None:
            yield from order
            return
        pool, lengths = self._batch * _POOL, self._lengths
        grouped = [
            i for at in range(0, len(order), pool) for i in sorted(order[at : at + pool], key=lambda i: -lengths[i])
        ]
        for batch in torch.randperm(len(order) // self._batch, generator=generator).tolist():
            yield from grouped[batch * self._batch : (batch + 1) * self._batch]

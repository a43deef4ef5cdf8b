"""Which sequences an optimizer step trains on: a function of the seed and the position alone.

Neither the number of processes nor a resume changes it. A position is an epoch and a global batch in it.

    EpochOrder            the rows of an epoch, in whole global batches
    SamplerOrder          the same, from the sampler of a custom Trainer
    BatchShard            the part of every global batch that one process trains on
    MicroBatchSampler     the sample keys of one process, micro-batch by micro-batch, from the current position on
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from params import CheckpointError
from trainer.data.permutation import ComputedPermutation
from trainer.data.randomness import seeded

_POOL = 50
"""Global batches whose sequences are sorted by length together: enough to save padding, and still random."""

_STORED: Final = 2**24
"""Most rows whose permutation is drawn at once and kept, in 128 MiB."""

Lengths: TypeAlias = "Sequence[int] | NDArray[np.int64]"
"""Tokens of each row, (N,)."""
Rows: TypeAlias = "torch.Tensor | _ComputedRows"
"""The rows of an epoch, which are read by slices."""
SampleKey = tuple[int, int]
"""An epoch and a row number; in a stream, 0 and the number of sequences before this one."""


class EpochOrder:
    """A permutation of `rows` rows per epoch, cut to whole global batches.

    The rows that are left over differ from epoch to epoch. Dropping them gives every optimizer step the same number of
    sequences, on any number of processes. With `lengths`, the tokens of each row, a global batch holds sequences of similar
    length, and the batches come in random order. The permutation of very many rows is computed batch by batch.
    """

    def __init__(self, rows: int, *, seed: int, global_batch_size: int, lengths: Lengths | None = None) -> None:
        self.batches = rows // global_batch_size
        """Global batches of an epoch."""
        self._rows = rows
        self._seed = seed
        self._size = global_batch_size
        self._lengths = None if lengths is None else torch.as_tensor(lengths)

    def rows(self, epoch: int) -> Rows:
        """Return the rows of an epoch, (batches * global batch size,) int64."""
        seed = (self._seed * 1_000_003 + epoch) % 2**63
        if self._rows > _STORED:
            return _ComputedRows(self._rows, self._size, seed, self._lengths)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(self._rows, generator=generator)[: self.batches * self._size]
        if self._lengths is None:
            return order
        pool = self._size * _POOL
        pools = (order[at : at + pool] for at in range(0, len(order), pool))
        longest_first = [_longest_first(rows, self._lengths) for rows in pools]
        return (
            torch.cat(longest_first)
            .view(self.batches, self._size)[torch.randperm(self.batches, generator=generator)]
            .flatten()
        )


class _ComputedRows:
    """The rows of an epoch, each global batch computed when it is read."""

    def __init__(self, rows: int, size: int, seed: int, lengths: torch.Tensor | None) -> None:
        self._order = ComputedPermutation(rows, seed)
        self._batches = ComputedPermutation(rows // size, seed + 1)
        self._size = size
        self._lengths = lengths

    def __getitem__(self, places: slice) -> torch.Tensor:
        """Return the rows at some places that follow each other."""
        start, stop, _ = places.indices(len(self._batches) * self._size)
        first, end = start // self._size, -(-stop // self._size)
        batches = torch.cat([torch.zeros(0, dtype=torch.int64), *map(self._batch, range(first, end))])
        return batches[start - first * self._size : stop - first * self._size]

    def _batch(self, number: int) -> torch.Tensor:
        if self._lengths is None:
            return self._at(number * self._size, (number + 1) * self._size)
        number = int(self._batches.at(np.array([number]))[0])
        pool = number // _POOL * _POOL
        rows = self._at(pool * self._size, min(pool + _POOL, len(self._batches)) * self._size)
        return _longest_first(rows, self._lengths)[(number - pool) * self._size :][: self._size]

    def _at(self, start: int, stop: int) -> torch.Tensor:
        return torch.from_numpy(self._order.at(np.arange(start, stop)))


def _longest_first(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return rows[torch.argsort(lengths[rows], descending=True, stable=True)]


class SamplerOrder:
    """The rows of an epoch as a custom sampler gives them, cut to whole global batches.

    The sampler must draw from torch, NumPy or Python's `random`, which are seeded with the seed and the epoch.
    """

    def __init__(self, sampler: Sampler[int], *, seed: int, global_batch_size: int) -> None:
        self.batches = len(sampler) // global_batch_size  # type: ignore[arg-type]
        """Global batches of an epoch."""
        self._sampler = sampler
        self._seed = seed
        self._size = global_batch_size

    def rows(self, epoch: int) -> torch.Tensor:
        """Return the rows of an epoch, (batches * global batch size,) int64."""
        with seeded(self._seed, "order", epoch):
            order = list(self._sampler)
        return torch.tensor(order[: self.batches * self._size], dtype=torch.int64)


@dataclass(frozen=True)
class BatchShard:
    """The part of every global batch that one process trains on: each `processes`-th micro-batch."""

    micro_batch: int
    accumulation: int
    processes: int
    process: int

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.micro_batch * self.accumulation * self.processes

    def places(self, number: int) -> range:
        """Return the places of this process's micro-batch `number`, counted from the start of the epoch."""
        start = (number * self.processes + self.process) * self.micro_batch
        return range(start, start + self.micro_batch)


class MicroBatchSampler(Sampler[list[SampleKey]]):
    """The micro-batches of one process, from the current position to the end of the epoch.

    A stream has no order, only numbers of sequences, and no end.
    """

    def __init__(self, order: EpochOrder | SamplerOrder | None, shard: BatchShard) -> None:
        self.order = order
        self._shard = shard
        self.epoch = 0
        self.batch = 0
        """The next global batch of the epoch."""

    def advance(self) -> None:
        """Move the position on by one optimizer step."""
        self.batch += 1
        if self.order and self.batch == self.order.batches:
            self.epoch, self.batch = self.epoch + 1, 0

    def upcoming(self, steps: int) -> Iterator[list[SampleKey]]:
        """Yield the keys of the next `steps` global batches, into later epochs too; a stream knows none."""
        assert self.order is not None
        size, epoch, batch = self._shard.global_batch_size, self.epoch, self.batch
        rows = self.order.rows(epoch)
        for _ in range(steps):
            if batch == self.order.batches:
                epoch, batch = epoch + 1, 0
                rows = self.order.rows(epoch)
            yield [(epoch, i) for i in rows[batch * size : (batch + 1) * size].tolist()]
            batch += 1

    def own_places(self) -> list[range]:
        """Return the places of this process's micro-batches in a global batch."""
        return [self._shard.places(number) for number in range(self._shard.accumulation)]

    @property
    def micro_batches_done(self) -> int:
        """This process's micro-batches of the epoch before the position."""
        return self.batch * self._shard.accumulation

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"epoch": self.epoch, "batch": self.batch, "global_batch_size": self._shard.global_batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position; CheckpointError if it was reached with another global batch, so that it means other rows."""
        size = self._shard.global_batch_size
        if state["global_batch_size"] != size:
            what = f"was written with a global batch of {state['global_batch_size']} sequences, this run has {size}"
            raise CheckpointError("the checkpoint", what, "keep training.global_batch_size, or start a new run")
        self.epoch, self.batch = state["epoch"], state["batch"]

    def __len__(self) -> int:
        if self.order is None:
            raise TypeError("a stream has no length")
        return self.order.batches * self._shard.accumulation

    def __iter__(self) -> Iterator[list[SampleKey]]:
        """Yield keys; micro-batches before the position come as empty lists, which Trainer counts and drops."""
        shard, epoch, first = self._shard, self.epoch, self.micro_batches_done
        yield from ([] for _ in range(first))
        rows = self.order.rows(epoch) if self.order else None
        for number in range(first, len(self)) if self.order else itertools.count(first):
            places = shard.places(number)
            yield [(epoch, i) for i in (places if rows is None else rows[places.start : places.stop].tolist())]

"""Which sequences an optimizer step trains on: a function of the seed and the position alone.

Neither the number of processes nor a resume changes it. A position is an epoch and a global batch in it.

    WeightedRows      how often an epoch has each row of several sources
    EpochOrder        the rows of an epoch, in whole global batches
    ReplayOrder       the same, with a share of known rows in each of them
    SamplerOrder      the same, from the sampler of a custom Trainer
    GlobalBatchShard  the part of every global batch that one process trains on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from trainer.data.randomness import seeded
from trainer.data.shards import rows_by_weight, rows_per_epoch, share_of_epoch

_POOL = 50
"""Global batches whose sequences are sorted by length together: enough to save padding, and still random."""

_STORED: Final = 2**24
"""Most rows whose permutation is drawn at once and kept, in 128 MiB."""

Lengths: TypeAlias = "Sequence[int] | NDArray[np.int64]"
"""Tokens of each row, (N,)."""
Groups: TypeAlias = "NDArray[np.int64]"
"""A number for each row, (N,)."""
SampleKey = tuple[int, int]
"""An epoch and a row number; in a stream, 0 and the number of sequences before this one."""


@dataclass(frozen=True)
class RowTraits:
    """What of the training rows decides their order, besides the seed."""

    lengths: Lengths | None = None
    """Tokens of each row: those of similar length are trained on together."""
    groups: Groups | None = None
    """A number for each row: those with the same one follow each other."""
    weights: Sequence[tuple[int, float]] = ()
    """As in `WeightedRows`; empty if all rows come once."""
    replay: KnownRows | None = None
    """Which rows are known, with a share of each global batch of their own."""


NO_TRAITS: Final = RowTraits()


class WeightedRows:
    """The rows of an epoch, if it has those of some sources more often or more seldom than once.

    `weights` are pairs of a number of rows that follow each other and their weight w. Each of these rows is in an epoch floor(w) times, and a
    share w - floor(w) of them once more. That share goes on in the next epoch where it ended, in an order of its own, so that all rows come
    equally often. Ranges with the same weight count as one.
    """

    def __init__(self, weights: Sequence[tuple[int, float]], seed: int) -> None:
        of_row = np.repeat([weight for _, weight in weights], [rows for rows, _ in weights])
        self._ranges = [
            (np.flatnonzero(of_row == weight), *share_of_epoch(rows, weight))
            for weight, rows in rows_by_weight(weights).items()
        ]
        """The rows of each weight, how often all of them come, and how many come once more."""
        self._orders = [ComputedPermutation(len(own[0]), seed + 2 + number) for number, own in enumerate(self._ranges)]

    def of_epoch(self, epoch: int) -> torch.Tensor:
        """Return the rows of an epoch in no particular order, (`rows_per_epoch`,) int64."""
        found = list[NDArray[np.int64]]()
        for (rows, whole, part), order in zip(self._ranges, self._orders, strict=True):
            places = (epoch * part + np.arange(part, dtype=np.int64)) % len(rows)
            found += [*([rows] * whole), rows[order.at(places)]]
        return torch.from_numpy(np.concatenate(found))


class EpochOrder:
    """A permutation of `rows` rows per epoch, cut to whole global batches.

    The rows that are left over differ from epoch to epoch. Dropping them gives every optimizer step the same number of
    sequences, on any number of processes. With `lengths`, the tokens of each row, a global batch holds sequences of similar
    length, and the batches come in random order. The permutation of very many rows is computed batch by batch. With `groups`, a
    number for each row, the groups are permuted, and the rows of each one follow each other. With `weights`, some rows come more often or
    more seldom (`WeightedRows`).
    """

    def __init__(
        self,
        rows: int,
        *,
        seed: int,
        global_batch_size: int,
        lengths: Lengths | None = None,
        groups: Groups | None = None,
        weights: Sequence[tuple[int, float]] = (),
    ) -> None:
        self._weighted = WeightedRows(weights, seed) if weights else None
        rows = rows_per_epoch(weights) if weights else rows
        self.batches = rows // global_batch_size
        """Global batches of an epoch."""
        self._rows = rows
        self._seed = seed
        self._size = global_batch_size
        self._lengths = None if lengths is None else torch.as_tensor(lengths)
        self._groups = None if groups is None else torch.from_numpy(np.unique(groups, return_inverse=True)[1])

    def rows(self, epoch: int) -> _EpochRows:
        """Return the rows of an epoch, (batches * global batch size,) int64, which are read by slices."""
        seed = (self._seed * 1_000_003 + epoch) % 2**63
        if self._groups is not None:
            places = torch.randperm(int(self._groups.max()) + 1, generator=torch.Generator().manual_seed(seed))
            by_group = torch.argsort(places[self._groups], stable=True)
            return _EpochRows(by_group, torch.arange(self.batches), self._size, None)
        order: Any = ComputedPermutation(self._rows, seed)
        batches: Any = ComputedPermutation(self.batches, seed + 1)
        if self._rows <= _STORED:
            generator = torch.Generator().manual_seed(seed)
            order, batches = (torch.randperm(count, generator=generator) for count in (self._rows, self.batches))
        if self._weighted:
            order = _Mapped(self._weighted.of_epoch(epoch), order)
        return _EpochRows(order, batches, self._size, self._lengths)


@dataclass(frozen=True)
class _Mapped:
    """The rows at the places that an order gives."""

    rows: torch.Tensor
    order: Any

    def __getitem__(self, places: slice) -> torch.Tensor:
        return self.rows[self.order[places]]


class _EpochRows:
    """The rows of an epoch; with lengths, each global batch is made when it is read."""

    def __init__(self, order: Any, batches: Any, size: int, lengths: torch.Tensor | None) -> None:
        self._order = order
        self._batches = batches
        self._size = size
        self._lengths = lengths

    def __getitem__(self, places: slice) -> torch.Tensor:
        start, stop, _ = places.indices(len(self._batches) * self._size)
        if self._lengths is None:
            return self._order[start:stop]  # type: ignore[no-any-return]
        first, end = start // self._size, -(-stop // self._size)
        batches = torch.cat([torch.zeros(0, dtype=torch.int64), *map(self._batch, self._batches[first:end].tolist())])
        return batches[start - first * self._size : stop - first * self._size]

    def _batch(self, number: int) -> torch.Tensor:
        pool = number // _POOL * _POOL
        rows = self._order[pool * self._size : min(pool + _POOL, len(self._batches)) * self._size]
        longest_first = rows[torch.argsort(self._lengths[rows], descending=True, stable=True)]  # type: ignore[index]
        return longest_first[(number - pool) * self._size :][: self._size]  # type: ignore[no-any-return]


class ComputedPermutation:
    """A permutation of the numbers below `count` that follows from a seed, and is computed where it is read.

    A Feistel network permutes the numbers below a power of four (Luby and Rackoff 1988, https://doi.org/10.1137/0217022). What
    falls outside of the wanted numbers is permuted again until it is inside ("cycle walking", Black and Rogaway 2002,
    https://doi.org/10.1007/3-540-45760-7_9), which takes less than four rounds on average.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._half_bits = np.uint64(((count - 1).bit_length() + 1) // 2)
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        self._keys = np.random.SeedSequence(seed).generate_state(8, np.uint64)  # one for each round

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, places: slice) -> torch.Tensor:
        return torch.from_numpy(self.at(np.arange(places.start, places.stop)))

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at some places, (N,)."""
        found = self._permute(places.astype(np.uint64))
        while (outside := found >= np.uint64(self._count)).any():
            found[outside] = self._permute(found[outside])
        return found.astype(np.int64)

    def _permute(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> self._half_bits, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & self._mask)
        return (left << self._half_bits) | right


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of each number, as SplitMix64 does (Steele et al. 2014, https://doi.org/10.1145/2660193.2660195)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


@dataclass(frozen=True)
class KnownRows:
    """Which rows the model that a training starts from has learned from, and their share of each global batch."""

    known: NDArray[np.bool_]
    """(N,); some rows are known and some are new."""
    share: float

    def per_batch(self, global_batch_size: int) -> tuple[int, int]:
        """Return how many new and how many known rows a global batch has: at least one of each."""
        known = min(max(1, round(self.share * global_batch_size)), global_batch_size - 1)
        return global_batch_size - known, known

    def batches(self, global_batch_size: int) -> int:
        """Return the global batches of an epoch: it goes once through the new rows, as far as they fill global batches."""
        return max(1, int((~self.known).sum()) // self.per_batch(global_batch_size)[0])


class ReplayOrder:
    """New and known rows in each global batch, each kind from an endless series of its own permutations.

    What is left of the new rows after an epoch begins the next one. With `lengths`, a global batch holds new rows of similar length and known
    rows of similar length, and the batches come in random order.
    """

    def __init__(self, replay: KnownRows, *, seed: int, global_batch_size: int, lengths: Lengths | None = None) -> None:
        self.batches = replay.batches(global_batch_size)
        """Global batches of an epoch."""
        self._kinds = [torch.from_numpy(np.flatnonzero(one)) for one in (~replay.known, replay.known)]
        self._counts = replay.per_batch(global_batch_size)
        self._seed = seed
        self._lengths = None if lengths is None else torch.as_tensor(lengths)

    def rows(self, epoch: int) -> torch.Tensor:
        """Return the rows of an epoch, (batches * global batch size,) int64: in each global batch the new ones come first."""
        parts = [self._drawn(kind, epoch).view(self.batches, -1) for kind in range(len(self._kinds))]
        every = torch.cat(parts, dim=1)
        if self._lengths is not None:
            every = every[torch.randperm(self.batches, generator=self._generator(len(parts), epoch))]
        return every.flatten()

    def _drawn(self, kind: int, epoch: int) -> torch.Tensor:
        """Return the rows of a kind that an epoch draws, (batches * count,)."""
        rows, count = self._kinds[kind], self.batches * self._counts[kind]
        first, last = epoch * count // len(rows), ((epoch + 1) * count - 1) // len(rows)
        turns = [
            rows[torch.randperm(len(rows), generator=self._generator(kind, turn))] for turn in range(first, last + 1)
        ]
        drawn = torch.cat(turns)[epoch * count - first * len(rows) :][:count]
        if self._lengths is None:
            return drawn
        pools = torch.split(drawn, _POOL * self._counts[kind])
        return torch.cat([one[torch.argsort(self._lengths[one], descending=True, stable=True)] for one in pools])

    def _generator(self, kind: int, turn: int) -> torch.Generator:
        state = np.random.SeedSequence([self._seed, kind, turn]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


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
class GlobalBatchShard:
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

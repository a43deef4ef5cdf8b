"""Which sequences an optimizer step trains on: a function of seed and position alone.

Neither the number of processes nor a resume changes it. A position is an epoch and a global batch in it; the position
that a checkpoint holds decides where a resumed run goes on.

    EpochOrder     the rows of an epoch, in whole global batches (SamplerOrder: by a sampler of one's own)
    MicroBatches   what of them one process takes: (epoch, row) tickets, micro-batch by micro-batch
    Examples       tickets to examples, from data that can be asked for any row (trainer.data.streaming: from a stream)
    Loaded         collated examples, with the rows that they are
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import torch
from torch.utils.data import Dataset, Sampler

from params import CheckpointError
from trainer.data.randomness import seeded

_POOL = 50
"""Global batches whose sequences are sorted by length together: enough to save the padding, and still random."""

Ticket = tuple[int, int]
"""An epoch, and the row in it; for a stream 0, and how many sequences stand before it."""


class EpochOrder:
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
        self.batches = rows // global_batch_size
        self._rows = rows
        self._seed = seed
        self._size = global_batch_size
        self._lengths = lengths

    def rows(self, epoch: int) -> torch.Tensor:
        """The rows of an epoch, (batches * global batch size,) int64."""
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(self._rows, generator=generator)[: self.batches * self._size]
        if self._lengths is None:
            return order
        pool, lengths = self._size * _POOL, self._lengths
        pools = (order[at : at + pool].tolist() for at in range(0, len(order), pool))
        grouped = torch.tensor([i for rows in pools for i in sorted(rows, key=lambda i: -lengths[i])])
        return grouped.view(self.batches, self._size)[torch.randperm(self.batches, generator=generator)].flatten()


class SamplerOrder:
    """The rows of an epoch as a sampler of one's own gives them, cut to whole global batches.

    Args:
        sampler: gives row numbers; its randomness comes from torch, NumPy or Python's `random`, and is the same for the
            same seed and epoch on every process.
        seed: the recipe's seed.
        global_batch_size: sequences per optimizer step.
    """

    def __init__(self, sampler: Sampler[int], *, seed: int, global_batch_size: int) -> None:
        self.batches = len(sampler) // global_batch_size  # type: ignore[arg-type]
        self._sampler = sampler
        self._seed = seed
        self._size = global_batch_size

    def rows(self, epoch: int) -> torch.Tensor:
        """The rows of an epoch, (batches * global batch size,) int64."""
        with seeded(self._seed, "order", epoch):
            order = list(self._sampler)
        return torch.tensor(order[: self.batches * self._size], dtype=torch.int64)


@dataclass(frozen=True)
class Share:
    """What one process takes of every global batch: each `processes`-th micro-batch."""

    micro_batch: int
    accumulation: int
    processes: int
    process: int

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.micro_batch * self.accumulation * self.processes

    def places(self, count: int) -> range:
        """The places that the micro-batch `count` of this process has; the first global batch begins at 0."""
        start = (count * self.processes + self.process) * self.micro_batch
        return range(start, start + self.micro_batch)


class MicroBatches(Sampler[list[Ticket]]):
    """The micro-batches of one process, from the current position to the end of the epoch; a stream has no end.

    Args:
        order: the rows of an epoch, or None for a stream.
        share: what this process takes.
    """

    def __init__(self, order: EpochOrder | SamplerOrder | None, share: Share) -> None:
        self._order = order
        self._share = share
        self.epoch = 0
        self.batch = 0
        """The global batch of the epoch that comes next."""

    def advance(self) -> None:
        """One optimizer step was made."""
        self.batch += 1
        if self._order and self.batch == self._order.batches:
            self.epoch, self.batch = self.epoch + 1, 0

    def coming(self, steps: int) -> Iterator[list[Ticket]]:
        """The tickets of so many global batches from the position on, into later epochs; a stream knows none."""
        assert self._order is not None
        size, epoch, batch = self._share.global_batch_size, self.epoch, self.batch
        rows = self._order.rows(epoch)
        for _ in range(steps):
            if batch == self._order.batches:
                epoch, batch = epoch + 1, 0
                rows = self._order.rows(epoch)
            yield [(epoch, i) for i in rows[batch * size : (batch + 1) * size].tolist()]
            batch += 1

    def own_places(self) -> list[range]:
        """Where in a global batch this process's micro-batches have their places."""
        return [self._share.places(count) for count in range(self._share.accumulation)]

    @property
    def done(self) -> int:
        """Micro-batches of the epoch that lie behind the position."""
        return self.batch * self._share.accumulation

    def state_dict(self) -> dict[str, int]:
        """The position."""
        return {"epoch": self.epoch, "batch": self.batch, "global_batch_size": self._share.global_batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position.

        Raises:
            CheckpointError: it was reached with another global batch, so that it means other rows.
        """
        size = self._share.global_batch_size
        if state["global_batch_size"] != size:
            what = f"was written with a global batch of {state['global_batch_size']} sequences, this run has {size}"
            raise CheckpointError("the checkpoint", what, "keep training.global_batch_size, or start a new run")
        self.epoch, self.batch = state["epoch"], state["batch"]

    def __len__(self) -> int:
        if self._order is None:
            raise TypeError("a stream has no length")
        return self._order.batches * self._share.accumulation

    def __iter__(self) -> Iterator[list[Ticket]]:
        """Tickets; what lies behind the position comes as empty lists, which Trainer counts and drops."""
        share, epoch, first = self._share, self.epoch, self.done
        yield from ([] for _ in range(first))
        rows = self._order.rows(epoch) if self._order else None
        for count in range(first, len(self)) if self._order else itertools.count(first):
            numbers = share.places(count)
            yield [(epoch, i) for i in (numbers if rows is None else rows[numbers.start : numbers.stop].tolist())]


class Rows(Protocol):
    """Data that can be asked for any row; with `__getitems__`, for several at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Examples(Dataset[Any]):
    """Tickets to examples. Random augmentation in the data draws the same for the same ticket."""

    def __init__(self, rows: Rows, seed: int) -> None:
        self._rows = rows
        self._seed = seed

    def __len__(self) -> int:
        return len(self._rows)

    def __getitems__(self, tickets: list[Ticket]) -> list[tuple[Ticket, Any]]:
        """The examples of one micro-batch."""
        if hasattr(self._rows, "__getitems__"):
            with seeded(self._seed, "rows", tickets):
                read: list[Any] = self._rows.__getitems__([index for _, index in tickets])
            return list(zip(tickets, read, strict=True))
        return [(ticket, self._one(ticket)) for ticket in tickets]

    def _one(self, ticket: Ticket) -> Any:
        with seeded(self._seed, "row", ticket):
            return self._rows[ticket[1]]


class Loaded(TypedDict):
    """A micro-batch as it comes from the loader."""

    inputs: dict[str, Any]
    """What the model gets."""
    rows: list[int]
    """The `row_id` of each sequence; where examples have none, its number in the data."""
    stream: dict[str, Any] | None
    """Where a stream stood after this micro-batch."""


class Collator:
    """Examples to a `Loaded` micro-batch; randomness in a collator is the same for the same rows."""

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]], seed: int) -> None:
        self._collate = collate
        self._seed = seed

    def __call__(self, ticketed: list[tuple[Ticket, Any]]) -> Loaded:
        """Collate the examples of one micro-batch."""
        examples = [example for _, example in ticketed]
        stream = examples[-1].pop(STREAM_STATE, None) if isinstance(examples[-1], dict) else None
        with seeded(self._seed, "collate", [ticket for ticket, _ in ticketed]):
            inputs = self._collate(examples)
        rows = [e.get("row_id", t[1]) if isinstance(e, dict) else t[1] for t, e in ticketed]
        return {"inputs": inputs, "rows": rows, "stream": stream}


STREAM_STATE = "__stream__"
"""Key under which the last example of a micro-batch carries where its stream stands."""

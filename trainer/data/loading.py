"""The training data of one process: a loader in the run's order, and the position in the data.

Randomness in the data and in the collator depends on the sample keys only, not on the process or the loader worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from params import CheckpointError, RecipeError
from trainer.data.order import NO_TRAITS, EpochOrder, GlobalBatchShard, ReplayOrder, RowTraits, SampleKey, SamplerOrder
from trainer.data.randomness import seeded
from trainer.data.streaming import STREAM_STATE, StreamByPosition
from trainer.objectives.bases.lazy_imports import transformers


def make_plain_data_loader(
    dataset: Any, collate: Callable[[list[Any]], Any], args: transformers.TrainingArguments
) -> DataLoader[Any]:
    """Return a loader of a dataset with the workers that the arguments ask for, as the source of `ResumableBatchSampler`."""
    workers = args.dataloader_num_workers
    return DataLoader(
        dataset,
        shuffle=None if isinstance(dataset, IterableDataset) else True,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers and workers > 0,
        prefetch_factor=args.dataloader_prefetch_factor if workers else None,
    )


class ResumableBatchSampler(Sampler[list[SampleKey]]):
    """This process's part of the rows of a loader, in the run's order, and the position of the next optimizer step.

    The loader `source` gives the data, the collator, the workers and the sampler; a sampler that shuffles is replaced by the
    run's own order, which follows from the `traits` of the rows, too. `augment` changes each example. As a sampler, it gives the keys of each
    micro-batch from the position to the end of the epoch; a stream has no order, only numbers of sequences, and no end.
    RecipeError if the loader makes its batches itself.
    """

    def __init__(
        self,
        source: DataLoader[Any],
        shard: GlobalBatchShard,
        *,
        seed: int,
        traits: RowTraits = NO_TRAITS,
        augment: Callable[[Any], Any] | None = None,
    ) -> None:
        self.order = _order(source, shard.global_batch_size, seed, traits)
        """The rows of each epoch; None for a stream."""
        self.epoch = 0
        self._batch = 0
        """The next global batch of the epoch."""
        self._shard = shard
        self._stream = StreamByPosition(source.dataset, seed) if isinstance(source.dataset, IterableDataset) else None
        self._dataset: Any = SeededDataset(source.dataset, seed) if self._stream is None else self._stream
        # A stream is read by one worker: several would each read all of it.
        workers = min(source.num_workers, 1) if self._stream is not None else source.num_workers
        self.loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=self,
            collate_fn=partial(collate_with_seed, source.collate_fn, seed, augment=augment),
            generator=torch.Generator(),  # otherwise every start of workers would draw from the process's random state
            num_workers=workers,
            pin_memory=source.pin_memory,
            persistent_workers=source.persistent_workers and workers > 0,
            prefetch_factor=source.prefetch_factor if workers else None,
        )
        """Yields this process's micro-batches, as `collate_with_seed` makes them."""
        self._stream_state = self._stream.state_dict() if self._stream is not None else None
        self.rows: list[list[int]] = []
        """Row ids of each micro-batch of the current optimizer step, on this process."""

    @property
    def micro_batches_done(self) -> int:
        """This process's micro-batches of the epoch before the position."""
        return self._batch * self._shard.accumulation

    def __len__(self) -> int:
        if self.order is None:
            raise TypeError("a stream has no length")
        return self.order.batches * self._shard.accumulation

    def __iter__(self) -> Iterator[list[SampleKey]]:
        """Yield keys; micro-batches before the position come as empty lists, which Trainer counts and drops."""
        epoch, first = self.epoch, self.micro_batches_done
        yield from ([] for _ in range(first))
        rows = self.order.rows(epoch) if self.order else None
        for number in range(first, len(self)) if self.order else itertools.count(first):
            places = self._shard.places(number)
            yield [(epoch, i) for i in (places if rows is None else rows[places.start : places.stop].tolist())]

    def micro_batch_inputs(self, micro_batches: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the model's inputs of the micro-batches of one optimizer step, and record their rows."""
        self.rows = []
        for micro_batch in micro_batches:
            self.rows.append(micro_batch["rows"])
            self._stream_state = micro_batch["stream"]
            yield micro_batch["inputs"]

    def advance(self) -> None:
        """Move the position on by one optimizer step."""
        self._batch += 1
        if self.order and self._batch == self.order.batches:
            self.epoch, self._batch = self.epoch + 1, 0

    def upcoming(self, steps: int) -> Iterator[list[SampleKey]]:
        """Yield the keys of the next `steps` global batches, into later epochs too; a stream knows none."""
        assert self.order is not None
        size, epoch, rows = self._shard.global_batch_size, self.epoch, self.order.rows(self.epoch)
        for number in range(self._batch, self._batch + steps):
            later, batch = divmod(number, self.order.batches)
            if self.epoch + later != epoch:
                epoch = self.epoch + later
                rows = self.order.rows(epoch)
            yield [(epoch, i) for i in rows[batch * size : (batch + 1) * size].tolist()]

    def own_places(self) -> list[range]:
        """Return the places of this process's micro-batches in a global batch."""
        return [self._shard.places(number) for number in range(self._shard.accumulation)]

    def examples(self, keys: list[SampleKey]) -> list[Any]:
        """Return the examples of some keys, read in this process."""
        return [example for _, example in self._dataset.__getitems__(keys)]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, of a stream with the state after the micro-batches that were trained on."""
        order = {"epoch": self.epoch, "batch": self._batch, "global_batch_size": self._shard.global_batch_size}
        return {"order": order, "stream": self._stream_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position; CheckpointError if it was reached with another global batch, so that it means other rows."""
        order, size = state["order"], self._shard.global_batch_size
        if order["global_batch_size"] != size:
            what = f"was written with a global batch of {order['global_batch_size']} sequences, this run has {size}"
            raise CheckpointError("the checkpoint", what, "keep training.global_batch_size, or start a new run")
        self.epoch, self._batch = order["epoch"], order["batch"]
        self._stream_state = state["stream"]
        if self._stream is not None:
            self._stream.load_state_dict(state["stream"])


def _order(
    source: DataLoader[Any], global_batch_size: int, seed: int, traits: RowTraits
) -> EpochOrder | ReplayOrder | SamplerOrder | None:
    if isinstance(source.dataset, IterableDataset):
        return None
    if type(source.batch_sampler) is not BatchSampler:
        what = f"get_train_dataloader gives a loader with a {type(source.batch_sampler).__name__}"
        raise RecipeError("training.trainer", what, "give it a sampler; batches follow from the recipe")
    sampler = source.batch_sampler.sampler  # `source.sampler` differs if the loader was given its batch sampler
    if type(sampler) is RandomSampler:
        if traits.replay:
            return ReplayOrder(traits.replay, seed=seed, global_batch_size=global_batch_size, lengths=traits.lengths)
        rows = len(source.dataset)  # type: ignore[arg-type]
        return EpochOrder(
            rows,
            seed=seed,
            global_batch_size=global_batch_size,
            lengths=traits.lengths,
            groups=traits.groups,
            weights=traits.weights,
        )
    if traits.weights:
        what = "its sampler chooses the rows, and the sources of the rows have weights (data.sources)"
        raise RecipeError("training.trainer", what, "remove the weights, or leave the sampler to the pipeline")
    if traits.replay:
        what = "the Trainer of the recipe has a sampler of its own, which does not know which rows are new"
        raise RecipeError("training.replay", what, "remove it, or the sampler")
    return SamplerOrder(cast("Sampler[int]", sampler), seed=seed, global_batch_size=global_batch_size)


class SeededDataset(Dataset[Any]):
    """Examples of data that gives any row, by sample key. Random augmentation in it draws the same numbers for the same key."""

    def __init__(self, data: Any, seed: int) -> None:
        self._data = data
        self._seed = seed

    def __len__(self) -> int:
        return len(self._data)

    def __getitems__(self, keys: list[SampleKey]) -> list[tuple[SampleKey, Any]]:
        """Return the examples of one micro-batch."""
        if hasattr(self._data, "__getitems__"):
            with seeded(self._seed, "rows", keys):
                read: list[Any] = self._data.__getitems__([index for _, index in keys])
            return list(zip(keys, read, strict=True))
        examples = []
        for key in keys:
            with seeded(self._seed, "row", key):
                examples.append((key, self._data[key[1]]))
        return examples


def collate_with_seed(
    collate: Callable[[list[Any]], dict[str, Any]],
    seed: int,
    keyed: list[tuple[SampleKey, Any]],
    augment: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Return a micro-batch: the model's `inputs`, the `row_id` of each sequence as `rows`, and the state of a `stream` after it.

    A random collator draws the same numbers for the same examples, and `augment` the same for one example, whatever the others are.
    An example without an id has its number in the data.
    """
    examples = [example for _, example in keyed]
    stream = examples[-1].pop(STREAM_STATE, None) if isinstance(examples[-1], dict) else None
    if augment:
        for i, (key, example) in enumerate(keyed):
            with seeded(seed, "augment", key):
                examples[i] = augment(example)
    with seeded(seed, "collate", [key for key, _ in keyed]):
        inputs = collate(examples)
    rows = [e.get("row_id", k[1]) if isinstance(e, dict) else k[1] for k, e in keyed]
    return {"inputs": inputs, "rows": rows, "stream": stream}

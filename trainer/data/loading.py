"""The training data of one process: a loader in the run's order, and the position in the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler

from params import RecipeError
from trainer.data.datasets import MicroBatch, SeededCollator, SeededDataset
from trainer.data.order import BatchShard, EpochOrder, Lengths, MicroBatchSampler, SampleKey, SamplerOrder
from trainer.data.streaming import StreamByPosition

if TYPE_CHECKING:
    from transformers import TrainingArguments


def source_loader(dataset: Any, collate: Callable[[list[Any]], Any], args: TrainingArguments) -> DataLoader[Any]:
    """Return a loader of a dataset with the workers that the arguments ask for, as the source of `TrainingData`."""
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


class TrainingData:
    """This process's part of the rows of a loader, in the run's order, and the position of the next optimizer step.

    The loader `source` gives the data, the collator, the workers and the sampler; a sampler that shuffles is replaced by the
    run's own order. With `lengths`, the tokens of each row, batches have similar length.

    Raises:
        RecipeError: the loader makes its batches itself.
    """

    def __init__(
        self, source: DataLoader[Any], shard: BatchShard, *, seed: int, lengths: Lengths | None = None
    ) -> None:
        self._sampler = MicroBatchSampler(_order(source, shard.global_batch_size, seed, lengths), shard)
        self._stream = StreamByPosition(source.dataset, seed) if isinstance(source.dataset, IterableDataset) else None
        self._dataset: Any = SeededDataset(source.dataset, seed) if self._stream is None else self._stream  # type: ignore[arg-type]
        # A stream is read by one worker: several would each read all of it.
        workers = min(source.num_workers, 1) if self._stream is not None else source.num_workers
        self.loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=self._sampler,
            collate_fn=SeededCollator(source.collate_fn, seed),
            generator=torch.Generator(),  # otherwise every start of workers would draw from the process's random state
            num_workers=workers,
            pin_memory=source.pin_memory,
            persistent_workers=source.persistent_workers and workers > 0,
            prefetch_factor=source.prefetch_factor if workers else None,
        )
        """Yields this process's micro-batches, as `MicroBatch`."""
        self._stream_state = self._stream.state_dict() if self._stream is not None else None
        self.rows: list[list[int]] = []
        """Row ids of each micro-batch of the current optimizer step, on this process."""

    @property
    def epoch(self) -> int:
        """The epoch of the position."""
        return self._sampler.epoch

    @property
    def micro_batches_done(self) -> int:
        """This process's micro-batches of the epoch before the position."""
        return self._sampler.micro_batches_done

    @property
    def order(self) -> EpochOrder | SamplerOrder | None:
        """The rows of each epoch; None for a stream."""
        return self._sampler.order

    def micro_batch_inputs(self, micro_batches: Iterator[MicroBatch]) -> Iterator[dict[str, Any]]:
        """Yield the model's inputs of the micro-batches of one optimizer step, and record their rows."""
        self.rows = []
        for micro_batch in micro_batches:
            self.rows.append(micro_batch["rows"])
            self._stream_state = micro_batch["stream"]
            yield micro_batch["inputs"]

    def advance(self) -> None:
        """Move the position on by one optimizer step."""
        self._sampler.advance()

    def upcoming(self, steps: int) -> Iterator[list[SampleKey]]:
        """Yield the sample keys of the next `steps` global batches; a stream knows none."""
        return self._sampler.upcoming(steps)

    def own_places(self) -> list[range]:
        """Return the places of this process's micro-batches in a global batch."""
        return self._sampler.own_places()

    def examples(self, keys: list[SampleKey]) -> list[Any]:
        """Return the examples of some keys, read in this process."""
        return [example for _, example in self._dataset.__getitems__(keys)]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, of a stream with the state after the micro-batches that were trained on."""
        return {"order": self._sampler.state_dict(), "stream": self._stream_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position; CheckpointError if it was reached with another global batch."""
        self._sampler.load_state_dict(state["order"])
        self._stream_state = state["stream"]
        if self._stream is not None:
            self._stream.load_state_dict(state["stream"])


def _order(
    source: DataLoader[Any], global_batch_size: int, seed: int, lengths: Lengths | None
) -> EpochOrder | SamplerOrder | None:
    if isinstance(source.dataset, IterableDataset):
        return None
    if type(source.batch_sampler) is not BatchSampler:
        what = f"get_train_dataloader gives a loader with a {type(source.batch_sampler).__name__}"
        raise RecipeError("training.trainer", what, "give it a sampler; batches follow from the recipe")
    sampler = source.batch_sampler.sampler  # `source.sampler` differs if the loader was given its batch sampler
    if type(sampler) is RandomSampler:
        rows = len(source.dataset)  # type: ignore[arg-type]
        return EpochOrder(rows, seed=seed, global_batch_size=global_batch_size, lengths=lengths)
    return SamplerOrder(cast("Sampler[int]", sampler), seed=seed, global_batch_size=global_batch_size)

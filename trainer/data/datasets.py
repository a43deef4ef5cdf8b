"""Datasets and a collator whose randomness depends on the sample keys only, not on the process or the loader worker.

SeededDataset     examples of data that gives any row (trainer.data.streaming.StreamByPosition: of a stream)
SeededCollator    examples to a micro-batch, with its row ids
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypedDict

from torch.utils.data import Dataset

from trainer.data.order import SampleKey
from trainer.data.randomness import seeded

STREAM_STATE = "__stream__"
"""Key under which the last example of a micro-batch carries the state of its stream."""


class MapStyleDataset(Protocol):
    """Data that gives any row by its number; with `__getitems__`, several at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class SeededDataset(Dataset[Any]):
    """Examples by sample key. Random augmentation in the data draws the same numbers for the same key."""

    def __init__(self, data: MapStyleDataset, seed: int) -> None:
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


class MicroBatch(TypedDict):
    """A micro-batch as the loader yields it."""

    inputs: dict[str, Any]
    """The model's inputs."""
    rows: list[int]
    """The `row_id` of each sequence, or its number in the data where examples have no id."""
    stream: dict[str, Any] | None
    """State of the stream after this micro-batch."""


class SeededCollator:
    """Collates examples to a `MicroBatch`. A random collator draws the same numbers for the same examples."""

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]], seed: int) -> None:
        self._collate = collate
        self._seed = seed

    def __call__(self, keyed: list[tuple[SampleKey, Any]]) -> MicroBatch:
        """Collate the examples of one micro-batch."""
        examples = [example for _, example in keyed]
        stream = examples[-1].pop(STREAM_STATE, None) if isinstance(examples[-1], dict) else None
        with seeded(self._seed, "collate", [key for key, _ in keyed]):
            inputs = self._collate(examples)
        rows = [e.get("row_id", k[1]) if isinstance(e, dict) else k[1] for k, e in keyed]
        return {"inputs": inputs, "rows": rows, "stream": stream}

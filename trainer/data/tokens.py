"""Read the outputs of the tokenize stage: splits as Arrow shards, the tokenizer, the objective's state."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa

from params import DataError
from trainer.data.shards import ROW, ROW_ID, Manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from trainer.objectives.bases.objective import Example, ObjectiveState

STATE: Final = "objective.json"
BATCH_SEQUENCES: Final = 1000
"""Sequences of one Arrow record batch."""


class Sequences:
    """The sequences of a split by number; they stay on disk until they are read.

    Raises:
        DataError: a shard is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._manifest = Manifest.read(folder)
        self._ends = list(itertools.accumulate(shard.rows for shard in self._manifest.shards))
        self._batches: dict[int, list[pa.RecordBatch]] = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Example:
        """Return one sequence, with the `row_id` of its row; negative numbers count from the end."""
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._ends, index)
        shard = self._manifest.shards[number]
        batch, place = divmod(index - self._ends[number] + shard.rows, BATCH_SEQUENCES)
        (example,) = self._shard(number)[batch].slice(place, 1).to_pylist()
        example[ROW_ID] = shard.first_row_id + example.pop(ROW)
        return dict(example)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        return type(self), (self._manifest.folder,)  # a process that gets it opens the files itself

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each sequence, (N,)."""
        numbers = range(len(self._manifest.shards))
        batches = [batch for number in numbers for batch in self._shard(number)]
        found = [np.diff(batch.column("input_ids").offsets.to_numpy()).astype(np.int64) for batch in batches]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _shard(self, number: int) -> list[pa.RecordBatch]:
        """The record batches of a shard, mapped into memory; all but the last hold BATCH_SEQUENCES sequences."""
        if number not in self._batches:
            path = self._manifest.path(self._manifest.shards[number])
            try:
                self._batches[number] = list(pa.ipc.open_stream(pa.memory_map(str(path))))
            except (OSError, pa.ArrowInvalid) as error:
                raise DataError(str(path), f"cannot be read: {error}", "run the tokenize stage again") from None
        return self._batches[number]


def read_split(tokens: Path, split: str) -> Sequences:
    """Return the sequences of a split."""
    return Sequences(tokens / split)


def read_tokenizer(tokens: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer that made the sequences."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(tokens / "tokenizer")
    return tokenizer


def read_state(tokens: Path) -> ObjectiveState:
    """Return what the objective collected from the train split."""
    state: ObjectiveState = json.loads((tokens / STATE).read_text(encoding="utf-8"))
    return state

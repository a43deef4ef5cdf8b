"""Read the outputs of the tokenize stage: splits as Arrow shards, the tokenizer, the objective's state."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from params import DataError
from params.foundation.artifacts import CORPUS
from trainer.data.shards import ROW, ROW_ID, Manifest, rows_per_epoch
from trainer.objectives.bases.lazy_imports import NDArray, transformers
from trainer.objectives.bases.rows import Example, ObjectiveState
from trainer.objectives.bases.texts.padding import token_column_names
from trainer.objectives.bases.texts.tokenizing import Tokenizer
from trainer.runtime.model_files import check_safe_to_load

STATE: Final = "objective.json"
BATCH_SEQUENCES: Final = 1000
"""Sequences of one Arrow record batch."""
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio as a share of all hashes: its multiples are spread evenly over them (Knuth, The Art of Computer Programming 3, 6.4)."""


class Sequences:
    """The sequences of a split by number, which stay on disk until they are read; DataError if a shard is missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self._manifest = Manifest.read(folder)
        self._ends = list(itertools.accumulate(shard.rows for shard in self._manifest.shards))
        self._batches: dict[int, list[pa.RecordBatch]] = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Example:
        """Return one sequence, with the `row_id` of its row; negative numbers count from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Return several sequences, which takes half the time of one after another."""
        found, first_row_ids = [], []
        for index in indices:
            place = index + len(self) if index < 0 else index
            if not 0 <= place < len(self):
                raise IndexError(index)
            number = bisect.bisect_right(self._ends, place)
            shard = self._manifest.shards[number]
            batch, place = divmod(place - self._ends[number] + shard.rows, BATCH_SEQUENCES)
            found.append(self._shard(number)[batch].slice(place, 1))
            first_row_ids.append(shard.first_row_id)
        table = pa.Table.from_batches(found, found[0].schema if found else pa.schema([(ROW, pa.int32())]))
        columns: dict[str, list[Any]] = {name: table.column(name).to_pylist() for name in table.column_names}
        rows = zip(first_row_ids, columns.pop(ROW), strict=True)
        columns[ROW_ID] = [first + row for first, row in rows]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        return type(self), (self._manifest.folder,)  # a process that gets it opens the files itself

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each sequence, (N,)."""
        numbers = range(len(self._manifest.shards))
        batches = [batch for number in numbers for batch in self._shard(number)]
        found = [
            sum(np.diff(batch.column(name).offsets.to_numpy()) for name in token_column_names(batch.schema.names))
            for batch in batches
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def weights(self) -> list[tuple[int, float]]:
        """Return the weights of sources: how many sequences follow each other, and how often an epoch learns from each. Empty if all are alike."""
        found = [(own.rows, own.weight) for own in self._manifest.shards]
        return found if any(weight != 1 for _, weight in found) else []

    @property
    def per_epoch(self) -> int:
        return rows_per_epoch(weights) if (weights := self.weights()) else len(self)

    def row_ids(self) -> NDArray[np.int64]:
        """Return the `row_id` of each sequence, (N,); of a packed one, that of its first row."""
        found = [np.zeros(0, np.int64)]
        for number, shard in enumerate(self._manifest.shards):
            found += [one.column(ROW).to_numpy().astype(np.int64) + shard.first_row_id for one in self._shard(number)]
        return np.concatenate(found)

    def numbers(self, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the `row_id` of each sequence and the integer that a column has for it, (N,) each."""
        batches = (batch for number in range(len(self._manifest.shards)) for batch in self._shard(number))
        values = [batch.column(column).to_numpy().astype(np.int64) for batch in batches]
        return self.row_ids(), np.concatenate([np.zeros(0, np.int64), *values])

    def hashes(self, seed: int) -> NDArray[np.uint64]:
        """Return a hash of the `input_ids` of each sequence, (N,). Equal sequences have different ones, by their order, so that all are as if by chance."""
        found = list[int]()
        for batch in (batch for number in range(len(self._manifest.shards)) for batch in self._shard(number)):
            ends, values = (part.to_numpy() for part in (batch["input_ids"].offsets, batch["input_ids"].values))
            found += [xxh3_64_intdigest(values[start:end].data, seed) for start, end in itertools.pairwise(ends)]
        every = np.array(found, np.uint64)
        order = np.argsort(every, kind="stable")
        number_among_equal = np.arange(len(every)) - np.searchsorted(every[order], every[order])
        every[order] += number_among_equal.astype(np.uint64) * _GOLDEN
        return every

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
    return Sequences(tokens / split)


def read_documents(tokens: Path) -> Sequences | None:
    """Return the documents of `data.corpus`, as an objective's `vector_space` encodes them; None without a corpus."""
    return Sequences(tokens / CORPUS) if (tokens / CORPUS).exists() else None


def read_tokenizer(tokens: Path) -> Tokenizer:
    check_safe_to_load(tokens / "tokenizer")
    tokenizer: Tokenizer = transformers.AutoTokenizer.from_pretrained(tokens / "tokenizer", trust_remote_code=False)
    return tokenizer


def read_objective_state(tokens: Path) -> ObjectiveState:
    """Return what the objective collected from the train split."""
    state: ObjectiveState = json.loads((tokens / STATE).read_text(encoding="utf-8"))
    return state

"""Validated rows encoded as sequences of tokens, with counts of what was encoded and what was cut off."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from params import DataError
from params.artifacts import Artifacts
from tasks.progress import progress
from tasks.tokenization.arrow import sort_longest_first, write_sequences
from tasks.tokenization.report import SplitStatistics
from trainer.objectives.bases.objective import EncodedRow, Example, Objective, ObjectiveState, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
_BATCH_ROWS = 1000
_BATCH_BYTES = 2**20
"""The most rows, and bytes of rows, that are encoded together: a tokenizer needs far more memory than its text."""


@dataclass(frozen=True)
class Encoder:
    """Encodes rows for an objective with a tokenizer."""

    objective: Objective[Any]
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    state: ObjectiveState

    def encode(self, rows: Sequence[Row], *, split: str = "test") -> list[EncodedRow]:
        """Return the sequences of each row of a split.

        Raises:
            DataError: a row cannot be encoded, for example because no training row has its label.
        """
        encode = self.objective.encode_training if split == "train" else self.objective.encode
        try:
            return encode(rows, self.tokenizer, self.max_length, self.state)
        except (ValueError, KeyError, TypeError) as error:
            if len(rows) > 1:  # one by one, to find the row
                return [encoded for row in rows for encoded in self.encode([row], split=split)]
            what = f"cannot be encoded: {error}"
            fix = "fix the row, or add a check to validation.expectations that sets it aside"
            raise DataError(f"row_id {rows[0]['row_id']}", what, fix) from error


def read_batches(artifacts: Artifacts, split: str) -> Iterator[list[Row]]:
    """Yield the validated rows of a split in batches; only one of them is in memory at a time."""
    with pq.ParquetFile(artifacts.rows / f"{split}.parquet") as file:
        for batch in file.iter_batches(_BATCH_ROWS):
            size = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, _BATCH_BYTES))
            for start in range(0, batch.num_rows, size):
                yield batch.slice(start, size).to_pylist()


def read_rows(artifacts: Artifacts, split: str) -> Iterator[Row]:
    """Yield the validated rows of a split; only a batch of them is in memory at a time."""
    return itertools.chain.from_iterable(read_batches(artifacts, split))


def encode_split(artifacts: Artifacts, split: str, target: Path, encoder: Encoder) -> tuple[SplitStatistics, int]:
    """Encode the validated rows of a split into the Arrow file `target`.

    The train split is packed as its objective does it; the other splits are sorted longest first. Return the counts of
    the split, and the number of characters of its rows' text.

    Raises:
        DataError: a row cannot be encoded, or the rows give no sequence.
    """
    source = artifacts.rows / f"{split}.parquet"
    total = pq.read_metadata(source).num_rows
    truncated = unused = characters = 0

    def encoded_rows() -> Iterator[tuple[Row, EncodedRow]]:
        for rows in read_batches(artifacts, split):
            yield from zip(rows, encoder.encode(rows, split=split), strict=True)

    def examples() -> Iterator[Example]:
        nonlocal truncated, unused, characters
        for row, encoded in progress(encoded_rows(), what=f"tokenize: {split} rows", total=total):
            truncated += encoded.is_truncated
            unused += not encoded.examples
            characters += len(encoder.objective.text(row))
            yield from encoded.examples

    if split == "train":
        lengths, learned = write_sequences(encoder.objective.pack(examples(), encoder.max_length), target)
    else:
        lengths, learned = write_sequences(examples(), target)
        sort_longest_first(target, lengths)
    if not lengths:
        what = f"its {total} rows give no sequence of {encoder.max_length} tokens"
        raise DataError(str(source), what, "add rows, or lower tokenization.max_length")
    if unused:
        message = "tokenize: %d of %d %s rows are not used: their first %d tokens hold nothing to learn"
        logger.warning(message, unused, total, split, encoder.max_length)
    statistics = SplitStatistics(
        rows=total,
        sequences=len(lengths),
        tokens=sum(lengths),
        longest=max(lengths),
        mean_length=round(sum(lengths) / len(lengths), 2),
        learned_tokens=learned,
        truncated_rows=truncated,
        unused_rows=unused,
    )
    return statistics, characters

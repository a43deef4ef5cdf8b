"""Validated rows encoded as sequences of tokens, with counts of what was encoded and what was cut off."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from params import DataError
from params.artifacts import Artifacts
from tasks.progress import progress
from tasks.tokenization.arrow import sort_longest_first, write_sequences
from tasks.tokenization.report import SplitStatistics
from trainer.objectives.bases.objective import Example, Objective, ObjectiveState, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
_BATCH_ROWS = 1000


@dataclass(frozen=True)
class Encoder:
    """Encodes rows for an objective with a tokenizer."""

    objective: Objective[Any]
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    state: ObjectiveState

    def encode(self, row: Row) -> list[Example]:
        """Return the sequences of one row.

        Raises:
            DataError: the row cannot be encoded, for example because no training row has its label.
        """
        try:
            return self.objective.encode(row, self.tokenizer, self.max_length, self.state)
        except (ValueError, KeyError, TypeError) as error:
            what = f"cannot be encoded: {error}"
            fix = "fix the row, or add a check to validation.expectations that sets it aside"
            raise DataError(f"row_id {row['row_id']}", what, fix) from error

    def truncates(self, row: Row, examples: list[Example]) -> bool:
        """Return whether some of the row is missing from its sequences."""
        return self.objective.is_truncated(row, examples, self.tokenizer, self.max_length)


def read_rows(artifacts: Artifacts, split: str) -> Iterator[Row]:
    """Yield the validated rows of a split; only a batch of them is in memory at a time."""
    with pq.ParquetFile(artifacts.rows / f"{split}.parquet") as file:
        for batch in file.iter_batches(_BATCH_ROWS):
            yield from batch.to_pylist()


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

    def encoded() -> Iterator[Example]:
        nonlocal truncated, unused, characters
        for row in progress(read_rows(artifacts, split), what=f"tokenize: {split} rows", total=total):
            examples = encoder.encode(row)
            truncated += encoder.truncates(row, examples)
            unused += not examples
            characters += len(encoder.objective.text(row))
            yield from examples

    if split == "train":
        lengths, learned = write_sequences(encoder.objective.pack(encoded(), encoder.max_length), target)
    else:
        lengths, learned = write_sequences(encoded(), target)
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

"""tokenize: validated rows to the sequences that the model sees.

    validated/rows/<split>.parquet -> tokens/<split>.arrow   input_ids, labels, row_id; the train split as the objective
                                                             arranges it (packed), the others longest first
                                      tokens/tokenizer/      trained on the train split, or the pretrained one
                                      tokens/objective.json  what the objective learned from the train split
                                      tokens/statistics.json

Rows stream through in batches, so memory does not grow with their number; only the lengths of the sequences are kept,
to order them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from params import DataError, ModelError
from params.artifacts import SPLITS, Artifacts, whole_folder
from params.schema import ObjectiveChoice, Tokenization, TrainTokenizer
from tasks.progress import progress
from tasks.stages import Report, save_report
from tasks.tokenization.arrow import _rows, _sort_longest_first, _write
from tasks.tokenization.tokenizers import _pretrained_tokenizer, train_tokenizer
from trainer import objectives
from trainer.data.tokens import STATE
from trainer.objectives.bases.objective import Example, Objective, Row, State

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


class SplitStatistics(Report):
    """Counts of one split; lengths are in tokens."""

    rows: int
    sequences: int
    tokens: int
    longest: int
    mean_length: float
    learned_tokens: int
    """Tokens that the loss is computed on; for a class, one per sequence."""
    truncated_rows: int
    """Rows of which the sequences lack something: text, or a label that no token is left for."""
    unused_rows: int
    """Rows that become no sequence: nothing in their first `max_length` tokens could be learned."""


class TokenizationReport(Report):
    """What the tokenize stage made."""

    vocab_size: int
    max_length: int
    characters_per_token: float
    """Of the train split's text: how much a token says."""
    splits: dict[str, SplitStatistics]


def tokenize(artifacts: Artifacts, *, tokenization: Tokenization, objective: ObjectiveChoice) -> TokenizationReport:
    """Turn the validated rows into sequences.

    Raises:
        DataError: a split gives no sequence, or a label of it was never seen in training.
        ModelError: the tokenizer cannot be used.
        StorageError: the disk is full; the earlier tokens are as they were.
    """
    learned = objectives.build(objective)
    with whole_folder(artifacts.tokens) as folder:
        tokenizer = _tokenizer(artifacts, tokenization, learned)
        tokenizer.save_pretrained(folder / "tokenizer")
        state = learned.fit(_rows(artifacts, "train"))
        (folder / STATE).write_text(json.dumps(state, indent=1, ensure_ascii=False), encoding="utf-8")
        encoder = Encoder(learned, tokenizer, tokenization.max_length, state)
        counts = {split: write_split(artifacts, split, folder / f"{split}.arrow", encoder) for split in SPLITS}
        targets = counts["train"].learned_tokens if learned.has_targets else 0
        characters = sum(len(learned.text(row)) for row in _rows(artifacts, "train"))
        report = TokenizationReport(
            vocab_size=len(tokenizer),
            max_length=tokenization.max_length,
            characters_per_token=round(characters / (counts["train"].tokens + targets), 3),
            splits=counts,
        )
        save_report(report, folder / artifacts.report("tokenize").name)
    return report


@dataclass(frozen=True)
class Encoder:
    """How a row becomes sequences: an objective, with all that it needs."""

    objective: Objective[Any]
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    state: State

    def encode(self, row: Row) -> list[Example]:
        """The sequences of one row.

        Raises:
            DataError: the row cannot be encoded, for example because its label was never seen in training.
        """
        try:
            return self.objective.encode(row, self.tokenizer, self.max_length, self.state)
        except (ValueError, KeyError, TypeError) as error:
            what = f"cannot be encoded: {error}"
            raise DataError(f"row_id {row['row_id']}", what, "mend the row, or let a check set it aside") from error

    def truncates(self, row: Row, examples: list[Example]) -> bool:
        """Whether the row's sequences lack some of it."""
        return self.objective.truncates(row, examples, self.tokenizer, self.max_length)


def _tokenizer(artifacts: Artifacts, tokenization: Tokenization, objective: Objective[Any]) -> PreTrainedTokenizerBase:
    choice = tokenization.tokenizer
    if isinstance(choice, TrainTokenizer):
        logger.info("tokenize: training a tokenizer with %d tokens", choice.vocab_size)
        tokenizer = train_tokenizer((objective.text(row) for row in _rows(artifacts, "train")), choice)
    else:
        tokenizer = _pretrained_tokenizer(choice.path, choice.revision)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            what = "has neither a padding nor an end-of-text token"
            raise ModelError("tokenization.tokenizer", what, "use the tokenizer of a trained model")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.model_max_length = tokenization.max_length
    objective.prepare_tokenizer(tokenizer)
    return tokenizer


def write_split(artifacts: Artifacts, split: str, target: Path, encoder: Encoder) -> SplitStatistics:
    """Encode the validated rows of a split into the Arrow file `target`.

    Raises:
        DataError: they give no sequence.
    """
    source = artifacts.rows / f"{split}.parquet"
    with pq.ParquetFile(source) as file:
        total = file.metadata.num_rows
    truncated = unused = 0

    def encoded() -> Iterator[Example]:
        nonlocal truncated, unused
        for row in progress(_rows(artifacts, split), what=f"tokenize: {split} rows", total=total):
            examples = encoder.encode(row)
            truncated += encoder.truncates(row, examples)
            unused += not examples
            yield from examples

    if split == "train":
        lengths, learned = _write(encoder.objective.pack(encoded(), encoder.max_length), target)
    else:
        lengths, learned = _write(encoded(), target)
        _sort_longest_first(target, lengths)
    if not lengths:
        raise DataError(
            str(source),
            f"{total} rows give no sequence of {encoder.max_length} tokens",
            "give more rows, or lower tokenization.max_length",
        )
    if unused:
        logger.warning(
            "tokenize: %d of %d %s rows give no sequence: nothing in them could be learned", unused, total, split
        )
    return SplitStatistics(
        rows=total,
        sequences=len(lengths),
        tokens=sum(lengths),
        longest=max(lengths),
        mean_length=round(sum(lengths) / len(lengths), 2),
        learned_tokens=learned,
        truncated_rows=truncated,
        unused_rows=unused,
    )

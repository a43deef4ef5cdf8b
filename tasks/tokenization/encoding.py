"""Validated rows encoded as sequences of tokens, with counts of what was encoded and what was cut off."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import DataError
from params.hashing import file_sha256
from params.schema import Launch
from tasks.executor import run_all
from tasks.progress import progress
from tasks.shard_cache import ShardCache
from tasks.split_rows import SplitRows
from tasks.tokenization.arrow import sort_longest_first, write_sequences
from tasks.tokenization.report import SplitStatistics
from trainer.data.shards import Manifest, Shard
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


def read_batches(rows: SplitRows, shard: Shard | None = None) -> Iterator[list[Row]]:
    """Yield the rows of a split, or of one shard, in batches; only one of them is in memory at a time."""
    for batch in rows.batches(batch_rows=_BATCH_ROWS, shard=shard):
        size = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, _BATCH_BYTES))
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size).to_pylist()


def read_rows(rows: SplitRows) -> Iterator[Row]:
    """Yield the rows of a split; only a batch of them is in memory at a time."""
    return itertools.chain.from_iterable(read_batches(rows))


def encode_split(
    rows: SplitRows, split: str, target: Path, encoder: Encoder, *, launch: Launch, cache: ShardCache | None = None
) -> tuple[SplitStatistics, int]:
    """Encode the rows of a split into Arrow shards in the folder `target`, one for each shard of the rows.

    The train split is packed as its objective does it; the other splits are sorted longest first. Both happen within a shard.
    Return the counts of the split, and the number of characters of its rows' text.

    Raises:
        DataError: a row cannot be encoded, or the rows give no sequence.
    """
    target.mkdir()
    work = [_Work(rows, shard, split, target, encoder, cache) for shard in rows.manifest.shards]
    found = {one.shard.name: counts for one in work if (counts := one.find())}
    missing = [one for one in work if one.shard.name not in found]
    if found:
        logger.info("tokenize: %d of %d shards of %s are those of an earlier run", len(found), len(work), split)
    for one, counts in zip(
        missing, run_all(_Work.do, missing, launch, what=f"tokenize: shards of {split}"), strict=True
    ):
        found[one.shard.name] = counts
    Manifest.write(target, [one.written(found[one.shard.name]) for one in work if found[one.shard.name].sequences])
    counts = sum(found.values(), _Counts())
    if not counts.sequences:
        what = f"its {len(rows)} rows give no sequence of {encoder.max_length} tokens"
        raise DataError(str(rows.folder), what, "add rows, or lower tokenization.max_length")
    if counts.unused:
        message = "tokenize: %d of %d %s rows are not used: their first %d tokens hold nothing to learn"
        logger.warning(message, counts.unused, len(rows), split, encoder.max_length)
    statistics = SplitStatistics(
        rows=len(rows),
        sequences=counts.sequences,
        tokens=counts.tokens,
        longest=counts.longest,
        mean_length=round(counts.tokens / counts.sequences, 2),
        learned_tokens=counts.learned,
        truncated_rows=counts.truncated,
        unused_rows=counts.unused,
    )
    return statistics, counts.characters


@dataclass(frozen=True)
class _Counts:
    sequences: int = 0
    tokens: int = 0
    longest: int = 0
    learned: int = 0
    truncated: int = 0
    unused: int = 0
    characters: int = 0

    def __add__(self, other: _Counts) -> _Counts:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self)}
        return _Counts(**sums | {"longest": max(self.longest, other.longest)})


@dataclass(frozen=True)
class _Work:
    """One shard of rows to encode."""

    rows: SplitRows
    shard: Shard
    split: str
    folder: Path
    encoder: Encoder
    cache: ShardCache | None

    @property
    def target(self) -> Path:
        return self.folder / Path(self.shard.name).with_suffix(".arrow")

    @property
    def _key(self) -> str:
        return key_of(self.rows, self.shard, self.split)

    def find(self) -> _Counts | None:
        """Return the counts of a shard that was encoded before, and put its sequences into the folder."""
        kept = self.cache.find(self._key, self.target) if self.cache else None
        return None if kept is None else _Counts(**kept)

    def do(self) -> _Counts:
        """Encode the shard; there is no file if it gives no sequence."""
        counts = _encode_shard(self.rows, self.shard, self.split, self.target, self.encoder)
        if self.cache:
            self.cache.keep(self._key, dataclasses.asdict(counts), self.target)
        return counts

    def written(self, counts: _Counts) -> Shard:
        """Return the shard of sequences."""
        changes = {"name": self.target.name, "rows": counts.sequences, "sha256": file_sha256(self.target)}
        return self.shard.model_copy(update=changes)


def key_of(rows: SplitRows, shard: Shard, split: str) -> str:
    """Return what the sequences of a shard depend on, besides settings and code."""
    return f"{shard.sha256} {split == 'train'} {rows.schema}"


def _encode_shard(rows: SplitRows, shard: Shard, split: str, path: Path, encoder: Encoder) -> _Counts:
    truncated = unused = characters = 0

    def encoded_rows() -> Iterator[tuple[Row, EncodedRow]]:
        for batch in read_batches(rows, shard):
            yield from zip(batch, encoder.encode(batch, split=split), strict=True)

    def examples() -> Iterator[Example]:
        nonlocal truncated, unused, characters
        for row, encoded in progress(encoded_rows(), what=f"tokenize: {split} rows of {shard.name}", total=shard.rows):
            truncated += encoded.is_truncated
            unused += not encoded.examples
            characters += len(encoder.objective.text(row))
            yield from encoded.examples

    packed = encoder.objective.pack(examples(), encoder.max_length) if split == "train" else examples()
    lengths, learned = write_sequences(packed, path, first_row_id=shard.first_row_id)
    if split != "train":
        sort_longest_first(path, lengths)
    return _Counts(len(lengths), sum(lengths), max(lengths, default=0), learned, truncated, unused, characters)

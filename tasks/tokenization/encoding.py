"""Validated rows encoded as sequences of tokens, with counts of what was encoded and what was cut off."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from params import DataError
from params.foundation.hashing import file_sha256
from tasks.progress import progress
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.arrow import sort_longest_first, write_sequences
from tasks.tokenization.report import SplitStatistics
from trainer import objectives
from trainer.data.shards import Manifest, Shard
from trainer.objectives.bases.objective import EncodedRow, Example, Objective, ObjectiveState, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
IS_CUT: Final = "is_cut"
SAYS_ALL: Final = "says_all"
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
    marks_rows: bool = False
    """Whether each sequence says in `IS_CUT` if it lacks some of its row, and in `SAYS_ALL` if the row's labels say all of it. A row
    that cannot be encoded then gives no sequence.
    """

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
            if self.marks_rows:
                return [EncodedRow([])]
            what = f"cannot be encoded: {error}"
            fix = "fix the row, or add a check to validation.expectations that sets it aside"
            raise DataError(f"row_id {rows[0]['row_id']}", what, fix) from error

    def marks(self, row: Row, encoded: EncodedRow) -> Example:
        """Return what each sequence of a row says about it."""
        says_all = self.objective.says_all(row, encoded.examples, self.tokenizer)
        return {IS_CUT: int(encoded.is_truncated), SAYS_ALL: int(says_all)}


def read_batches(rows: SplitRows, shard: Shard | None = None) -> Iterator[list[Row]]:
    """Yield the rows of a split, or of one shard, in batches; only one of them is in memory at a time."""
    for batch in rows.batches(batch_rows=_BATCH_ROWS, shard=shard):
        size = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, _BATCH_BYTES))
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size).to_pylist()


def read_rows(rows: SplitRows) -> Iterator[Row]:
    """Yield the rows of a split; only a batch of them is in memory at a time."""
    return itertools.chain.from_iterable(read_batches(rows))


def collect_labels(rows: SplitRows, objective: Objective[Any], workers: ShardWorkers, *, settings: str) -> set[str]:
    """Return the `row_labels` of all rows of a split; `settings` is a hash of the objective's options."""
    if not objectives.overrides(objective, "row_labels"):
        return set()
    works = [_LabelsWork(rows.only(shard), shard, settings) for shard in rows.manifest.shards]
    found: set[str] = set()
    return found.union(*workers.run(partial(_labels_of_shard, objective), works, what="shards (labels)"))


@dataclass(frozen=True)
class _LabelsWork:
    """One shard of rows whose labels are to be found."""

    rows: SplitRows
    shard: Shard
    settings: str
    files: tuple[Path, ...] = ()

    @property
    def key(self) -> str:
        return f"labels {self.shard.sha256} {self.rows.schema} {self.settings}"


def _labels_of_shard(objective: Objective[Any], work: _LabelsWork) -> set[str]:
    rows = work.rows.rows(list(objective.columns()))
    return {label for row in rows for label in objective.row_labels(row)}


@dataclass(frozen=True)
class EncodedSplit:
    """What the rows of a split became."""

    statistics: SplitStatistics
    characters: int
    """Characters of the rows' text."""


def encode_splits(
    splits: Mapping[str, SplitRows], folder: Path, encoder: Encoder, workers: ShardWorkers, *, settings: str = ""
) -> dict[str, EncodedSplit]:
    """Encode the rows of each split into Arrow shards in `folder`/<split>, one for each shard of the rows.

    The train split is packed as its objective does it; the other splits are sorted longest first. Both happen within a shard.

    Args:
        splits: the rows by name of the split.
        folder: where the splits go.
        encoder: encodes the rows.
        workers: do the work.
        settings: hash of what the encoder depends on, for shards that are kept.

    Raises:
        DataError: a row cannot be encoded, or the rows of a split give no sequence.
    """
    for split in splits:
        (folder / split).mkdir()
    works = [
        _Work(rows.only(shard), shard, split, folder / split, settings)
        for split, rows in splits.items()
        for shard in rows.manifest.shards
    ]
    counts = list(workers.run(partial(_encode_shard, encoder), works, what="shards"))
    return {
        split: _encoded(rows, split, encoder, [(w, c) for w, c in zip(works, counts, strict=True) if w.split == split])
        for split, rows in splits.items()
    }


def _encoded(rows: SplitRows, split: str, encoder: Encoder, done: Sequence[tuple[_Work, _Counts]]) -> EncodedSplit:
    """Write the manifest of a split, and sum the counts of its shards."""
    counts = sum((own for _, own in done), _Counts())
    if not counts.sequences and not encoder.marks_rows:
        what = f"its {len(rows)} rows give no sequence of {encoder.max_length} tokens"
        raise DataError(str(rows.folder), what, "add rows, or lower tokenization.max_length")
    Manifest.write(done[0][0].folder, [work.written(own) for work, own in done if own.sequences])
    if counts.unused and not encoder.marks_rows:
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
    return EncodedSplit(statistics, counts.characters)


@dataclass(frozen=True)
class _Counts:
    sequences: int = 0
    tokens: int = 0
    longest: int = 0
    learned: int = 0
    truncated: int = 0
    unused: int = 0
    characters: int = 0
    sha256: str = ""
    """Hash of the file of one shard."""

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(
            self.sequences + other.sequences,
            self.tokens + other.tokens,
            max(self.longest, other.longest),
            self.learned + other.learned,
            self.truncated + other.truncated,
            self.unused + other.unused,
            self.characters + other.characters,
        )


@dataclass(frozen=True)
class _Work:
    """One shard of rows to encode."""

    rows: SplitRows
    shard: Shard
    split: str
    folder: Path
    settings: str

    @property
    def key(self) -> str:
        return f"{self.shard.sha256} {self.split == 'train'} {self.rows.schema} {self.settings}"

    @property
    def target(self) -> Path:
        return self.folder / Path(self.shard.name).with_suffix(".arrow")

    @property
    def files(self) -> list[Path]:
        return [self.target]

    def written(self, counts: _Counts) -> Shard:
        """Return the shard of sequences."""
        changes = {"name": self.target.name, "rows": counts.sequences, "sha256": counts.sha256}
        return self.shard.model_copy(update=changes)


def _encode_shard(encoder: Encoder, work: _Work) -> _Counts:
    """Encode a shard; there is no file if it gives no sequence."""
    truncated = unused = characters = 0
    shard, is_train = work.shard, work.split == "train"

    def encoded_rows() -> Iterator[tuple[Row, EncodedRow]]:
        for batch in read_batches(work.rows, shard):
            yield from zip(batch, encoder.encode(batch, split=work.split), strict=True)

    def examples() -> Iterator[Example]:
        nonlocal truncated, unused, characters
        what = f"tokenize: {work.split} rows of {shard.name}"
        for row, encoded in progress(encoded_rows(), what=what, total=shard.rows):
            truncated += encoded.is_truncated
            unused += not encoded.examples
            characters += sum(map(len, encoder.objective.texts(row)))
            marks = encoder.marks(row, encoded) if encoder.marks_rows else {}
            yield from (example | marks for example in encoded.examples)

    packed = encoder.objective.pack(examples(), encoder.max_length) if is_train else examples()
    lengths, learned = write_sequences(packed, work.target, first_row_id=shard.first_row_id)
    if not is_train:
        sort_longest_first(work.target, lengths)
    sha256 = file_sha256(work.target) if lengths else ""
    return _Counts(len(lengths), sum(lengths), max(lengths, default=0), learned, truncated, unused, characters, sha256)

"""Validated rows encoded as sequences of tokens, with counts of what was encoded and what was cut off.

The sequences are Arrow stream files, written and sorted in memory that does not grow with their number.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from params import DataError
from params.foundation.artifacts import CORPUS
from params.foundation.hashing import file_sha256
from tasks.progress import iterate_with_progress
from tasks.shards.kept_work import ShardTask, ShardWorkers, hash_settings
from tasks.shards.split_rows import SplitRows, values_of_rows
from tasks.tokenization.report import SplitStatistics
from trainer import objectives
from trainer.data.shards import ROW, ROW_ID, Manifest
from trainer.data.tokens import BATCH_SEQUENCES
from trainer.objectives.bases.objective import EncodedRow, Example, Objective, ObjectiveState, Row
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, token_column_names
from trainer.objectives.bases.texts.tokenizing import Tokenizer
from trainer.runtime.library_errors import panics_as_errors

logger = logging.getLogger(__name__)
IS_CUT: Final = "is_cut"
SAYS_ALL: Final = "says_all"
_BATCH_ROWS = 1000
_BATCH_BYTES = 2**20
"""The most rows, and bytes of rows, that are encoded together: a tokenizer needs far more memory than its text."""


@dataclass(frozen=True)
class RowEncoder:
    """Encodes rows for an objective with a tokenizer."""

    objective: Objective[Any]
    tokenizer: Tokenizer
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
        encode = {"train": self.objective.encode_training, CORPUS: self._encode_documents}.get(
            split, self.objective.encode
        )
        try:
            with panics_as_errors():
                return encode(rows, self.tokenizer, self.max_length, self.state)
        except (ValueError, KeyError, TypeError) as error:
            if len(rows) > 1:  # one by one, to find the row
                return [encoded for row in rows for encoded in self.encode([row], split=split)]
            if self.marks_rows:
                return [EncodedRow([])]
            what = f"cannot be encoded: {error}"
            fix = "fix the row, or add a check to validation.expectations that sets it aside"
            raise DataError(f"row_id {rows[0]['row_id']}", what, fix) from error

    def _encode_documents(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, _: ObjectiveState
    ) -> list[EncodedRow]:
        space = self.objective.vector_space
        assert space is not None
        texts = [str(row[str(space.document_column)]) for row in rows]
        found = space.encode_documents(texts, tokenizer, max_length)
        return [EncodedRow([one | {ROW_ID: row[ROW_ID]}]) for row, one in zip(rows, found, strict=True)]

    def marks(self, row: Row, encoded: EncodedRow) -> Example:
        """Return what each sequence of a row says about it."""
        says_all = self.objective.says_all(row, encoded.examples, self.tokenizer)
        return {IS_CUT: int(encoded.is_truncated), SAYS_ALL: int(says_all)}


def find_documents(rows: Path, objective: Objective[Any]) -> SplitRows | None:
    """Return the documents of `data.corpus` among the validated rows, as the objective reads them; None if it ranks none."""
    space = objective.vector_space
    if space is None or space.document_column is None or not (rows / CORPUS).exists():
        return None
    return SplitRows(rows / CORPUS).reading({space.document_column: "string"})


def read_row_batches(rows: SplitRows) -> Iterator[list[Row]]:
    """Yield the rows of a split, or of one shard, in batches; only one of them is in memory at a time."""
    for batch in rows.batches(batch_rows=_BATCH_ROWS):
        size = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, _BATCH_BYTES))
        for start in range(0, batch.num_rows, size):
            yield [*values_of_rows(batch.slice(start, size))]


def read_rows(rows: SplitRows) -> Iterator[Row]:
    """Yield the rows of a split; only a batch of them is in memory at a time."""
    return itertools.chain.from_iterable(read_row_batches(rows))


def collect_state(
    rows: SplitRows, objective: Objective[Any], workers: ShardWorkers, *, settings: str
) -> ObjectiveState:
    """Return what the objective learns from all rows of the train split; `settings` is a hash of its options."""
    if not any(objectives.overrides_method(objective, name) for name in ("row_labels", "summarize")):
        return objective.state_of_summaries([])
    works = [
        ShardTask(own, f"labels {own.shard.sha256} {rows.schema.remove_metadata()} {settings}") for own in rows.shards
    ]
    return objective.state_of_summaries(
        workers.run(partial(_summary_of_shard, objective), works, what="shards (labels)")
    )


def _summary_of_shard(objective: Objective[Any], rows: SplitRows) -> Any:
    return objective.summarize(rows.rows(list(objective.columns())))


def encode_and_write_splits(
    splits: Mapping[str, SplitRows],
    folder: Path,
    encoder: RowEncoder,
    workers: ShardWorkers,
    *,
    settings: str = "",
    known: NDArray[np.int64] | None = None,
) -> dict[str, tuple[SplitStatistics, int]]:
    """Encode the rows of each split into Arrow shards in `folder`/<split>, one for each shard of the rows.

    The train split is packed as its objective does it; the other splits are sorted longest first. Both happen within a shard.
    Return what the rows of each split became, and the characters of the texts of the train split. `settings` is a hash of what the encoder depends on,
    for shards that are kept. If an objective packs, train rows whose ids are `known`, (K,) ascending, share no sequence with others.

    Raises:
        DataError: a row cannot be encoded, or the rows of a split give no sequence.
    """
    works = list[ShardTask[tuple[SplitRows, str, Path, NDArray[np.int64] | None]]]()
    for split, rows in splits.items():
        (folder / split).mkdir()
        packs_apart = known is not None and split == "train" and objectives.overrides_method(encoder.objective, "pack")
        starts = [shard.first_row_id for shard in rows.manifest.shards]
        by_shard = np.split(known, np.searchsorted(known, starts))[1:] if known is not None and packs_apart else []
        for own, ids in itertools.zip_longest(rows.shards, by_shard):
            target = folder / split / Path(own.shard.name).with_suffix(".arrow")
            key = f"{own.shard.sha256} {split == 'train'} {split == CORPUS} {rows.schema.remove_metadata()} {settings}"
            if ids is not None:
                key += f" {hash_settings(known=(ids - own.shard.first_row_id).tolist())}"
            works.append(ShardTask((own, split, target, ids), key, [target]))
    done = zip(works, workers.run(partial(_encode_shard, encoder), works, what="shards"), strict=True)
    encoded = [(work.item, found) for work, found in done]
    return {
        split: _describe(
            rows, split, encoder, [(own, target, found) for (own, of, target, _), found in encoded if of == split]
        )
        for split, rows in splits.items()
    }


@dataclass(frozen=True)
class _EncodedShard:
    counts: Counter[str]
    longest: int
    sha256: str


def _describe(
    rows: SplitRows, split: str, encoder: RowEncoder, done: Sequence[tuple[SplitRows, Path, _EncodedShard]]
) -> tuple[SplitStatistics, int]:
    """Write the manifest of a split, and sum the counts of its shards."""
    counts = sum((found.counts for _, _, found in done), Counter[str]())
    if not counts["sequences"] and not encoder.marks_rows:
        what = f"its {len(rows)} rows give no sequence of {encoder.max_length} tokens"
        raise DataError(str(rows.folder), what, "add rows, or raise tokenization.max_length")
    shards = [
        own.shard.model_copy(update={"name": target.name, "rows": found.counts["sequences"], "sha256": found.sha256})
        for own, target, found in done
        if found.sha256
    ]
    Manifest.write(done[0][1].parent, shards)
    if counts["unused"] and not encoder.marks_rows:
        message = "tokenize: %d of %d %s rows are not used: their first %d tokens hold nothing to learn"
        logger.warning(message, counts["unused"], len(rows), split, encoder.max_length)
    if counts["several"] and encoder.objective.renders_conversations():
        message = "tokenize: %d of %d %s conversations are a sequence for each answer, as where templates drop earlier thoughts"
        logger.info(message, counts["several"], len(rows), split)
    statistics = SplitStatistics(
        rows=len(rows),
        sequences=counts["sequences"],
        tokens=counts["tokens"],
        longest=max(found.longest for _, _, found in done),
        mean_length=round(counts["tokens"] / counts["sequences"], 2),
        learned_tokens=counts["learned"],
        truncated_rows=counts["truncated"],
        unused_rows=counts["unused"],
    )
    return statistics, counts["characters"]


def _encode_shard(encoder: RowEncoder, work: tuple[SplitRows, str, Path, NDArray[np.int64] | None]) -> _EncodedShard:
    """Encode a shard; there is no file if it gives no sequence."""
    rows, split, target, known = work
    counts = Counter[str]()
    apart = None if known is None else set(known.tolist())

    def encoded_rows(kind: bool) -> Iterator[tuple[Row, EncodedRow]]:  # noqa: FBT001
        for every in read_row_batches(rows):
            batch = every if apart is None else [row for row in every if (row[ROW_ID] in apart) is kind]
            yield from zip(batch, encoder.encode(batch, split=split) if batch else (), strict=True)

    def examples(kind: bool = False) -> Iterator[Example]:  # noqa: FBT001, FBT002
        what = f"tokenize: {split} rows of {rows.shard.name}"
        for row, encoded in iterate_with_progress(encoded_rows(kind), what=what, total=len(rows)):
            counts["truncated"] += encoded.is_truncated
            counts["unused"] += not encoded.examples
            counts["several"] += len(encoded.examples) > 1
            counts["characters"] += sum(map(len, encoder.objective.texts(row))) if split == "train" else 0
            marks = encoder.marks(row, encoded) if encoder.marks_rows else {}
            yield from (example | marks for example in encoded.examples)

    kinds = [False] if apart is None else [False, True]
    packs = [encoder.objective.pack(examples(kind), encoder.max_length) for kind in kinds] if split == "train" else []
    packed = itertools.chain.from_iterable(packs) if packs else examples()
    lengths, learned = write_sequences(packed, target, first_row_id=rows.shard.first_row_id)
    if split != "train":
        sort_file_longest_first(target, lengths)
    counts.update(sequences=len(lengths), tokens=sum(lengths), learned=learned)
    return _EncodedShard(counts, max(lengths, default=0), file_sha256(target) if lengths else "")


def write_sequences(examples: Iterable[Example], target: Path, *, first_row_id: int) -> tuple[list[int], int]:
    """Write sequences to an Arrow stream file, a shard of a split (trainer.data.shards); without sequences, there is none.

    Return the length of each sequence, and the number of labels that the loss is computed on.
    """
    lengths: list[int] = []
    learned = 0
    remaining = iter(examples)
    with contextlib.ExitStack() as stack:
        writer: pa.RecordBatchStreamWriter | None = None
        while batch := list(islice(remaining, BATCH_SEQUENCES)):
            if writer is None:
                schema = _schema(batch)
                names = token_column_names(schema.names)
                writer = stack.enter_context(pa.ipc.new_stream(str(target), schema))
            rows = [example | {ROW: example[ROW_ID] - first_row_id} for example in batch]
            written = pa.RecordBatch.from_pylist(rows, schema)
            writer.write_batch(written)
            lengths += [sum(len(example[name]) for name in names) for example in batch]
            learned += _count_learned(written)
    return lengths, learned


def sort_file_longest_first(target: Path, lengths: list[int]) -> None:
    """Sort the sequences of a file by length, so that batches have little padding and the largest batch comes first.

    If a batch does not fit into memory, the evaluation fails at its start and not hours later.
    """
    if not lengths:
        return
    order = np.argsort([-length for length in lengths], kind="stable").tolist()
    with pa.memory_map(str(target)) as source:
        # Each holds BATCH_SEQUENCES sequences, which stay on disk until they are read.
        batches = pa.ipc.open_stream(source).read_all().to_batches()
        ordered = target.with_suffix(".sorted")
        with pa.ipc.new_stream(str(ordered), batches[0].schema) as writer:
            for start in range(0, len(order), BATCH_SEQUENCES):
                chosen = order[start : start + BATCH_SEQUENCES]
                rows = [batches[i // BATCH_SEQUENCES].slice(i % BATCH_SEQUENCES, 1) for i in chosen]
                writer.write_table(pa.Table.from_batches(rows).combine_chunks())
    ordered.rename(target)


def _schema(examples: Sequence[Example]) -> pa.Schema:
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    fields = [(ROW, pa.int32())]
    for name, value in examples[0].items():
        if isinstance(value, list):
            has_numbers = any(isinstance(number, float) for example in examples for number in example[name][:1])
            fields.append((name, pa.list_(pa.float32() if has_numbers else pa.int32())))
        elif name != ROW_ID:
            fields.append((name, kinds[type(value)]))
    return pa.schema(sorted(fields))


def _count_learned(batch: pa.RecordBatch) -> int:
    """Return the number of labels with a loss; one per sequence unless there is one for each token."""
    kind = batch.schema.field("labels").type if "labels" in batch.schema.names else pa.null()
    if not pa.types.is_list(kind) or pa.types.is_floating(kind.value_type):
        return int(batch.num_rows)
    return int(np.count_nonzero(batch["labels"].flatten().to_numpy() != IGNORE_INDEX))

"""Sequences of tokens as Arrow stream files, written and sorted in memory that does not grow with their number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from trainer.data.shards import ROW, ROW_ID
from trainer.data.tokens import BATCH_SEQUENCES
from trainer.objectives.bases.objective import Example
from trainer.objectives.bases.padding import IGNORE_INDEX, token_columns


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
                writer = stack.enter_context(pa.ipc.new_stream(str(target), schema))
            rows = [example | {ROW: example[ROW_ID] - first_row_id} for example in batch]
            written = pa.RecordBatch.from_pylist(rows, schema)
            writer.write_batch(written)
            lengths += [sum(len(example[name]) for name in token_columns(schema.names)) for example in batch]
            learned += _count_learned(written)
    return lengths, learned


def sort_longest_first(target: Path, lengths: list[int]) -> None:
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

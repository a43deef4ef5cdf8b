"""Sequences of tokens as Arrow files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from params.artifacts import Artifacts
from trainer.objectives.bases.objective import Example

_BATCH = 1000


def _rows(artifacts: Artifacts, split: str) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(artifacts.rows / f"{split}.parquet") as file:
        for batch in file.iter_batches(_BATCH):
            yield from batch.to_pylist()


def _write(examples: Iterable[Example], target: Path) -> tuple[list[int], int]:
    """Write sequences as an Arrow stream; return their lengths, and how many labels the loss is computed on."""
    lengths: list[int] = []
    learned = 0
    writer: pa.RecordBatchStreamWriter | None = None
    schema: pa.Schema | None = None
    batch: list[Example] = []

    def flush() -> None:
        nonlocal writer, schema, batch
        if batch:
            schema = schema or _schema(batch[0])
            writer = writer or pa.ipc.new_stream(str(target), schema)
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            batch = []

    for example in examples:
        lengths.append(len(example["input_ids"]))
        labels = example.get("labels", 0)
        learned += sum(label != -100 for label in labels) if isinstance(labels, list) else 1
        batch.append(example)
        if len(batch) >= _BATCH:
            flush()
    flush()
    if writer:
        writer.close()
    return lengths, learned


def _schema(example: Example) -> pa.Schema:
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), list: pa.list_(pa.int32())}
    return pa.schema(sorted((name, kinds[type(value)]) for name, value in example.items()))


def _sort_longest_first(target: Path, lengths: list[int]) -> None:
    """Order a split by length: least padding, and the largest batch, which may not fit, comes first."""
    if not lengths:
        return
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    with pa.memory_map(str(target)) as source:
        batches = pa.ipc.open_stream(source).read_all().to_batches()  # of _BATCH rows each, on disk until they are read
        ordered = target.with_suffix(".sorted")
        with pa.ipc.new_stream(str(ordered), batches[0].schema) as writer:
            for start in range(0, len(order), _BATCH):
                rows = [batches[i // _BATCH].slice(i % _BATCH, 1) for i in order[start : start + _BATCH]]
                writer.write_table(pa.Table.from_batches(rows).combine_chunks())
    ordered.rename(target)

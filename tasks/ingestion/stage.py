"""ingest: rows from the recipe's source, as they came, with a `row_id` each, in the three splits.

    runs/<recipe>/raw/{train,validation,test}.parquet
    runs/<recipe>/raw/source.json                       the source's revision, the columns and the number of rows

`row_id` is a row's position in the source, over all of its splits. A split that the source does not have is taken out
of its training rows by a hash of their content, so a row stays in its split when other rows come, go or move.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from params import DataError, RecipeError
from params.artifacts import SPLITS, Artifacts, whole_folder
from params.hashing import file_sha256
from params.loading import suggestion
from params.schema import Data, Split
from tasks.ingestion.batches import Batch
from tasks.ingestion.parquet import ParquetFolder
from tasks.ingestion.source import Source, open_source
from tasks.progress import progress
from tasks.stages import Report, save_report

ROW_ID = "row_id"
Assign = Callable[[pa.RecordBatch], Sequence[str]]


class IngestReport(Report):
    """What was read."""

    source: str
    """Kind of the source."""
    revision: str
    """What the rows depend on: a commit, or a hash of the files, the query or the code."""
    rows: dict[str, int]
    """Rows of each split."""
    columns: dict[str, str]
    """Name and Arrow type of each column."""
    data_sha256: dict[str, str]
    """SHA-256 of each split's file."""


def ingest(artifacts: Artifacts, *, data: Data, seed: int) -> IngestReport:
    """Read the source of `data` and write its rows by split.

    Raises:
        RecipeError: the source or the split cannot be as the recipe says.
        DataError: a row cannot be read, its type is not that of the rows before it, or a split has no rows.
        HubRefusedError: the Hub does not give the dataset out.
        TransientError: a Hub or database cannot be reached.
        StorageError: the rows cannot be written; what stood there before still does.
    """
    source = open_source(data.source, artifacts.root)
    shares = _shares(source.splits, data.split)
    with whole_folder(artifacts.raw) as staged:
        rows = _rows(source, data.split, shares, seed)
        with ParquetFolder(staged, SPLITS) as tables, contextlib.closing(rows):
            for batch, splits in progress(rows, what="batches of rows"):
                tables.write(batch, splits)
        report = IngestReport(
            source=data.source.kind,
            revision=source.revision,
            rows=tables.rows,
            columns={field.name: str(field.type) for field in tables.schema},
            data_sha256={split: file_sha256(tables.path(split)) for split in SPLITS},
        )
        _refuse_empty_splits(report.rows, source.splits, data.split)
        save_report(report, staged / artifacts.report("ingest").name)
    return report


def split_of(row: Mapping[str, Any], shares: Mapping[str, float], seed: int) -> str:
    """The split of a training row: a function of the values of `row`, of `shares` and of `seed` alone.

    SHA-256 of the seed and the row as canonical JSON is read as a number in [0, 1); the shares are laid out from 0 on,
    and what lies behind them is `train`.
    """
    digest = hashlib.sha256(f"{seed}\n{canonical_json(row)}".encode()).digest()
    position = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
    for split, share in shares.items():
        if position < share:
            return split
        position -= share
    return "train"


def canonical_json(value: object) -> str:
    """JSON that is the same for the same values: sorted keys, no nulls in objects, 1 for 1.0.

    A column that becomes double, or that older rows do not have, so leaves the split of the older rows alone.
    """
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), default=str)


def _canonical(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def _shares(given: Sequence[str], split: Split) -> dict[str, float]:
    """The share of the training rows for each split that the source does not have."""
    shares = {
        name: share for name, share in (("test", split.test), ("validation", split.validation)) if name not in given
    }
    for name, share in shares.items():
        if not share:
            what = f"there would be no {name} rows: the source has none of its own, and the share is 0"
            raise RecipeError(f"data.split.{name}", what, "give a share, for example 0.05, or files of its own")
    if sum(shares.values()) >= 1:
        raise RecipeError("data.split", "the shares leave no training rows", "let them add up to less than 1")
    return shares


def _rows(
    source: Source, split: Split, shares: Mapping[str, float], seed: int
) -> Generator[tuple[Batch, Sequence[str]], None, None]:
    """Batches with their `row_id`, and the split of each of their rows."""
    row_id = 0
    for given in source.splits:
        divided = given == "train" and bool(shares)
        with contextlib.closing(source.batches(given)) as batches:
            for batch in batches:
                names = batch.rows.schema.names
                _check_columns(names, split.by if divided else [], batch.address(0))
                if divided:
                    rows = batch.rows.select(split.by or names).to_pylist()
                    splits = [split_of(row, shares, seed) for row in rows]
                else:
                    splits = [given] * len(batch.rows)
                ids = pa.array(range(row_id, row_id + len(batch.rows)), type=pa.int64())
                row_id += len(batch.rows)
                numbered = pa.RecordBatch.from_arrays([ids, *batch.rows.columns], names=[ROW_ID, *names])
                yield Batch(numbered, batch.address), splits


def _check_columns(names: Sequence[str], by: Sequence[str], where: str) -> None:
    if ROW_ID in names:
        what = f"there is a column `{ROW_ID}`, the name under which rows are followed through the stages"
        raise DataError(where, what, "rename the column in the source, for example to `source_row_id`")
    for name in by:
        if name not in names:
            raise RecipeError("data.split.by", f"the rows have no column `{name}`", suggestion(name, names, "columns"))


def _refuse_empty_splits(rows: Mapping[str, int], given: Sequence[str], split: Split) -> None:
    for name in SPLITS:
        if rows[name]:
            continue
        if name in given:
            fix = "check that the source has rows" if name == "train" and not any(rows.values()) else "add rows to it"
            raise DataError(name, f"the split has no rows, of {sum(rows.values())} in all", fix)
        what = f"none of {rows['train']} training rows fell into this split at a share of {getattr(split, name)}"
        raise DataError(name, what, f"raise `data.split.{name}`, add rows, or give files for this split")

"""ingest: a source's rows in, the three splits out; the rows are unchanged, but for a `row_id`.

    runs/<recipe>/raw/{train,validation,test}.parquet
    runs/<recipe>/raw/source.json                       the report: the source's revision, the columns, the number of rows

`row_id` is a row's position in the source, counted over all of its splits. If the source lacks a split, some of its
training rows go there. A hash of a row's content decides, or of the columns in `group_by`, so a row keeps its split when other
rows are added, removed or moved.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from params import DataError, RecipeError
from params.artifacts import SPLITS, Artifacts, whole_folder
from params.hashing import file_sha256
from params.loading import suggestion
from params.schema import Data, Split
from tasks.ingestion.batches import Batch, readable
from tasks.ingestion.parquet import ParquetFolder
from tasks.ingestion.report import IngestReport
from tasks.ingestion.source import Source, open_source
from tasks.progress import progress
from tasks.stages import save_report

ROW_ID = "row_id"


def ingest(artifacts: Artifacts, *, data: Data, seed: int) -> IngestReport:
    """Read the rows of a recipe's source and write them by split.

    Raises:
        RecipeError: the recipe's source or split is not possible.
        DataError: a row cannot be read, its types do not fit the earlier rows, or a split has no rows.
        HubRefusedError: the Hub refuses access to the dataset.
        TransientError: the Hub or database cannot be reached.
        StorageError: the disk is full; the earlier rows are unchanged.
    """
    source = open_source(data.source, artifacts.root)
    shares = _shares(source.splits, data.split)
    with whole_folder(artifacts.raw) as folder:
        rows = _rows(source, data.group_by, shares, seed)
        with ParquetFolder(folder, SPLITS, group_by=data.group_by) as tables, contextlib.closing(rows):
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
        save_report(report, folder / artifacts.report("ingest").name)
    return report


def split_of(row: Mapping[str, Any], shares: Mapping[str, float], seed: int) -> str:
    """Return the split of a training row, which depends on its values, the shares and the seed only.

    SHA-256 of the seed and the row's canonical JSON is a number in [0, 1). The shares divide that interval, starting
    at 0; the rest of it is `train`.
    """
    digest = hashlib.sha256(f"{seed}\n{canonical_json(row)}".encode()).digest()
    position = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
    for split, share in shares.items():
        if position < share:
            return split
        position -= share
    return "train"


def canonical_json(value: object) -> str:
    """Return JSON that is equal for equal values: keys are sorted, nulls in objects left out, and 1.0 is written as 1.

    So older rows keep their split when a column is added, or when it becomes double.
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


def _shares(source_splits: Sequence[str], split: Split) -> dict[str, float]:
    """Return the share of the training rows for each split that the source lacks."""
    shares = {"test": split.test, "validation": split.validation}
    shares = {name: share for name, share in shares.items() if name not in source_splits}
    for name, share in shares.items():
        if not share:
            what = f"there would be no {name} rows: the source has no such split, and the share is 0"
            fix = "set a share such as 0.05, or give the split its own files"
            raise RecipeError.at(f"data.split.{name}", what, fix)
    if sum(shares.values()) >= 1:
        fix = "choose shares that add up to less than 1"
        raise RecipeError.at("data.split", "the shares leave no training rows", fix)
    return shares


def _rows(
    source: Source, group_by: Sequence[str], shares: Mapping[str, float], seed: int
) -> Generator[tuple[Batch, Sequence[str]], None, None]:
    """Yield the batches with their `row_id`, and the split of each row."""
    row_id = 0
    for source_split in source.splits:
        divided = source_split == "train" and bool(shares)
        with contextlib.closing(source.batches(source_split)) as batches:
            for source_batch in batches:
                batch, rows = readable(source_batch)
                names = batch.rows.schema.names
                _check_columns(names, group_by, batch.address(0))
                if divided:
                    deciding = group_by or names
                    splits = [split_of({name: row[name] for name in deciding}, shares, seed) for row in rows]
                else:
                    splits = [source_split] * len(batch.rows)
                ids = pa.array(range(row_id, row_id + len(batch.rows)), type=pa.int64())
                row_id += len(batch.rows)
                numbered = pa.RecordBatch.from_arrays([ids, *batch.rows.columns], names=[ROW_ID, *names])
                yield Batch(numbered, batch.address), splits


def _check_columns(names: Sequence[str], group_by: Sequence[str], where: str) -> None:
    if ROW_ID in names:
        what = f"there is a column `{ROW_ID}`, a name that the pipeline uses itself"
        raise DataError(where, what, "rename the column in the source, for example to `source_row_id`")
    for name in group_by:
        if name not in names:
            fix = suggestion(name, names, "columns")
            raise RecipeError.at("data.group_by", f"the rows have no column `{name}`", fix)


def _refuse_empty_splits(rows: Mapping[str, int], source_splits: Sequence[str], split: Split) -> None:
    for name in SPLITS:
        if rows[name]:
            continue
        if name in source_splits:
            fix = "check that the source has rows" if not any(rows.values()) else f"add {name} rows to the source"
            raise DataError(name, f"the split has no rows; all splits have {sum(rows.values())}", fix)
        what = f"none of {rows['train']} training rows fell into this split at a share of {getattr(split, name)}"
        raise DataError(name, what, f"raise data.split.{name}, add rows, or give the split its own files")

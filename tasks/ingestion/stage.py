"""ingest: a source's rows in, the three splits out; the rows are unchanged, but for a `row_id`.

    runs/<recipe>/raw/{train,validation,test}/      Parquet shards, see tasks.split_rows
    runs/<recipe>/raw/source.json                   the report: the source's revision, the columns, the number of rows

`row_id` is a row's position in the source, counted over all of its splits. If the source lacks a split, some of its
training rows go there. A hash of a row's content decides, or of the columns in `group_by`, so a row keeps its split when other
rows are added, removed or moved. Each part of the source, 65,536 rows of it, gives one shard of a split: rows that are appended
leave the shards of earlier parts as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from params import DataError, RecipeError
from params.artifacts import SPLITS, Artifacts, whole_folder
from params.loading import suggestion
from params.schema import Data, Split
from tasks.ingestion.batches import readable
from tasks.ingestion.parquet import Column, PartWriter, check_types, cut, widen, write_schema
from tasks.ingestion.report import IngestReport
from tasks.ingestion.source import Source, open_source
from tasks.progress import progress
from tasks.split_rows import SplitRows
from tasks.stages import save_report
from trainer.data.shards import ROW, ROW_ID, Manifest, Shard, digest


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
        columns, shards = dict[str, Column](), {split: list[Shard]() for split in SPLITS}
        for part in progress(_parts(source, folder, data.group_by, shares, seed), what="parts of the source"):
            widen(columns, part.columns)
            for split, shard in part.shards.items():
                shards[split].append(shard)
        for split in SPLITS:
            (folder / split).mkdir(exist_ok=True)
            write_schema(folder / split, columns, data.group_by)
            check_types(Manifest.write(folder / split, shards[split]), columns)
        rows = {split: SplitRows(folder / split) for split in SPLITS}
        report = IngestReport(
            source=data.source.kind,
            revision=source.revision,
            rows={split: len(rows[split]) for split in SPLITS},
            columns={field.name: str(field.type) for field in rows["train"].schema},
            data_sha256={split: digest(folder / split) for split in SPLITS},
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
    return _ENCODER.encode(_canonical(value))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


def _canonical(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
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


def _parts(
    source: Source, folder: Path, group_by: Sequence[str], shares: Mapping[str, float], seed: int
) -> Iterator[PartWriter]:
    """Write the parts of the source one after another, and yield each when it is written."""
    row_id = 0
    for source_split in source.splits:
        with contextlib.closing(source.batches(source_split)) as batches:
            for number, part in enumerate(cut(batches)):
                with PartWriter(folder, number, first_row_id=row_id) as writer:
                    for source_batch in part:
                        batch, rows = readable(source_batch)
                        names = batch.rows.schema.names
                        _check_columns(names, group_by, batch.address(0))
                        if source_split == "train" and shares:
                            deciding = group_by or names
                            splits = [split_of({name: row[name] for name in deciding}, shares, seed) for row in rows]
                        else:
                            splits = [source_split] * len(rows)
                        writer.write(batch, splits)
                row_id += writer.rows
                yield writer


def _check_columns(names: Sequence[str], group_by: Sequence[str], where: str) -> None:
    for name in (ROW_ID, ROW):
        if name in names:
            what = f"there is a column `{name}`, a name that the pipeline uses itself"
            raise DataError(where, what, f"rename the column in the source, for example to `source_{name.strip('_')}`")
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

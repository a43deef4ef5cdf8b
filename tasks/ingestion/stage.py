"""ingest: a source's rows in, the three splits out; the rows are unchanged, but for a `row_id`.

    runs/<recipe>/raw/{train,validation,test}/      Parquet shards, see tasks.shards.split_rows
    runs/<recipe>/raw/corpus/                       the documents of `data.corpus`, if there is one
    runs/<recipe>/raw/corrections/                  the rows of `data.corrections`, if there are some
    runs/<recipe>/raw/suites/<name>/                the rows of `evaluation.suites`
    runs/<recipe>/raw/source.json                   the report: the source's revision, the columns, the number of rows

`row_id` is a row's position in the source, counted over all of its splits. If the source lacks a split, some of its
training rows go there. A hash of a row's content decides, or of the columns in `group_by`, so a row keeps its split when other
rows are added, removed or moved.

Each part of a split of the source gives one shard of a split: rows that are appended leave the shards of earlier parts as they are. A
part has `PART_ROWS` rows, or fewer, a power of two, if the first rows of its split are long. So the rows of a part depend neither on
how the source divides its rows into files and batches nor on the rows that come after it.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa

from params import DataError, RecipeError
from params.dvc_files import StageInputsSnapshot
from params.foundation.artifacts import CORPUS, SPLITS, SUITES, Artifacts, replace_folder_atomically
from params.loading import suggestion
from params.schema import Data, Launch, Source, SplitFractions, Suite
from tasks.ingestion.batches import Batches, SourceBatch, to_readable_batch
from tasks.ingestion.file_index import FileRowIndex, FileRowRange
from tasks.ingestion.parquet import (
    SourceColumn,
    WrittenPart,
    part_file_name,
    widen_schema_in_place,
    write_part_shards,
    write_split_schema,
)
from tasks.ingestion.report import IngestReport
from tasks.ingestion.source import OpenedSource, naming_source, open_source
from tasks.ingestion.split_assigner import SplitAssigner, row_position
from tasks.ingestion.stratify import give_each_value_a_training_row
from tasks.progress import iterate_with_progress
from tasks.shards.kept_work import ShardTask, ShardWorkers
from tasks.shards.split_rows import JSON, SplitRows, type_name, values_of_column
from tasks.stages import save_report
from trainer.data.shards import Manifest, Shard, folder_sha256

logger = logging.getLogger(__name__)
PART_ROWS = 65_536
"""The most rows of a part."""
_PART_BYTES = 64 << 20
_MEASURED_ROWS = 512


def ingest(
    artifacts: Artifacts,
    *,
    data: Data,
    seed: int,
    launch: Launch,
    suites: Sequence[Suite] = (),
    inputs: StageInputsSnapshot | None = None,
) -> IngestReport:
    """Read the rows of a recipe's source and write them by split; those of other sources have no splits.

    Raises:
        RecipeError: the recipe's source or split is not possible.
        DataError: a row cannot be read, its types do not fit the earlier rows, or a split has no rows.
        HubRefusedError: the Hub refuses access to the dataset.
        TransientError: the Hub or database cannot be reached.
        StorageError: the disk is full; the earlier rows are unchanged.
    """
    with (
        replace_folder_atomically(artifacts.raw) as folder,
        ShardWorkers(artifacts, "ingest", launch, inputs, imports=[__name__]) as workers,
    ):
        source = open_source(data.source, artifacts.root, workers.memory)
        shares = _shares(source.splits, data.split)
        division = SplitAssigner("train", shares, dict.fromkeys(data.group_by, False), seed)
        columns, shards = _write_rows(source, division, folder, workers)
        mixed = [name for name, column in columns.items() if column.is_mixed]
        if shares and {*mixed} & {*data.group_by}:  # rows with 7 belong to those with "7"
            for split in SPLITS:
                shutil.rmtree(folder / split, ignore_errors=True)
            group_by = {name: name in mixed for name in data.group_by}
            columns, shards = _write_rows(source, replace(division, group_by=group_by), folder, workers)
        for name in mixed:
            found, kind = columns[name].found, type_name(columns[name].type)
            logger.warning("ingest: column `%s` holds %s: it is read as %s", name, found, kind)
        for split in SPLITS:
            (folder / split).mkdir(exist_ok=True)
            write_split_schema(folder / split, columns, data.group_by)
            Manifest.write(folder / split, shards[split])
        if shares and (by := data.split.stratify):
            _check_columns(list(columns), [by], "data.split.stratify")
            moved = give_each_value_a_training_row(folder, shards, by, shares, lambda row: row_position(row, seed))
            if moved:
                message = "ingest: a row of each of %d value(s) of `%s` goes to train, where a hash had put none"
                logger.info(message, moved, by)
            for split in SPLITS:
                Manifest.write(folder / split, shards[split])
        rows = {split: SplitRows(folder / split) for split in SPLITS}
        others: dict[str, tuple[str, Source]] = {
            name: (f"data.{name}", own) for name, own in data.sources.items() if name != "source"
        }
        for number, suite in enumerate(suites):
            others[f"{SUITES}/{suite.name}"] = (f"evaluation.suites.{number}.source", suite.source)
        revisions = dict[str, str]()
        for name, (key, own) in others.items():
            with naming_source(key):
                opened = open_source(own, artifacts.root, workers.memory)
                _write_without_splits(opened, folder / name, workers, seed)
                revisions[name] = opened.revision
        written = (*SPLITS, *others)
        report = IngestReport(
            source=data.source.kind,
            revision=source.revision,
            corpus_revision=revisions.get(CORPUS, ""),
            rows={split: len(rows[split]) for split in SPLITS},
            columns={field.name: type_name(field.type) for field in rows["train"].schema},
            data_sha256={split: folder_sha256(folder / split, shards.get(split, ())) for split in written},
        )
        _refuse_empty_splits(report.rows, source.splits, data.split)
        save_report(report, folder / artifacts.report("ingest").name)
    return report


def _shares(source_splits: Sequence[str], split: SplitFractions) -> dict[str, float]:
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


def _write_rows(
    source: OpenedSource, division: SplitAssigner, folder: Path, workers: ShardWorkers
) -> tuple[dict[str, SourceColumn], dict[str, list[Shard]]]:
    """Write the rows of all splits of the source, and return their columns and the shards of each split."""
    columns, shards, row_id = dict[str, SourceColumn](), {split: list[Shard]() for split in SPLITS}, 0
    for split in source.splits:
        own = division if split == "train" else replace(division, source_split=split, shares={})
        for part in _write_parts(source, own, folder, workers):
            widen_schema_in_place(columns, part.columns)
            for name, shard in part.shards.items():
                shards[name].append(shard.model_copy(update={"first_row_id": row_id}))
            row_id += part.rows
    return columns, shards


def _write_without_splits(source: OpenedSource, folder: Path, workers: ShardWorkers, seed: int) -> None:
    staging = folder.with_name(f".{folder.name}")
    (staging / "train").mkdir(parents=True)
    columns, shards = _write_rows(source, SplitAssigner("train", {}, {}, seed), staging, workers)
    if not shards["train"]:
        raise DataError("data.source", "has no rows", "add some, or remove it")
    write_split_schema(staging / "train", columns, [])
    Manifest.write(staging / "train", shards["train"])
    (staging / "train").rename(folder)
    staging.rmdir()


def _write_parts(
    source: OpenedSource, division: SplitAssigner, folder: Path, workers: ShardWorkers
) -> Iterator[WrittenPart]:
    """Write the parts of a split of the source."""
    split, works = division.source_split, list[ShardTask[tuple[int, Sequence[FileRowRange]]]]()
    files = source.indexes(split)
    if files is None:
        with contextlib.closing(source.batches(split)) as batches:
            parts = enumerate(divide_batches_into_parts(batches))
            yield from iterate_with_progress(
                map(partial(_write, division, folder), parts), what=f"ingest: parts of {split}"
            )
        return
    for number, pieces in enumerate(divide_files_into_parts(files)):
        key = f"{number} {[piece.key for piece in pieces]} {division}"
        # the source has the other splits
        paths = [folder / own / part_file_name(number) for own in (split, *division.shares)]
        works.append(ShardTask((number, pieces), key, paths))
    yield from workers.run(partial(_write_files, division, folder), works, what=f"parts of {split}")


def _write_files(division: SplitAssigner, folder: Path, part: tuple[int, Sequence[FileRowRange]]) -> WrittenPart:
    return _write(division, folder, (part[0], read_file_ranges(part[1])))


def _write(division: SplitAssigner, folder: Path, part: tuple[int, Iterator[SourceBatch]]) -> WrittenPart:
    def with_splits() -> Iterator[tuple[SourceBatch, list[str]]]:
        for source_batch in part[1]:
            batch, rows = to_readable_batch(source_batch)
            _check_columns(batch.rows.schema.names, [*division.group_by])
            yield batch, division.of(rows)

    return write_part_shards(with_splits(), folder, part[0])


def _check_columns(names: Sequence[str], columns: Sequence[str], key: str = "data.group_by") -> None:
    for name in columns:
        if name not in names:
            fix = suggestion(name, names, "columns")
            raise RecipeError.at(key, f"the rows have no column `{name}`", fix)


def _refuse_empty_splits(rows: Mapping[str, int], source_splits: Sequence[str], split: SplitFractions) -> None:
    for name in SPLITS:
        if rows[name]:
            continue
        if name in source_splits:
            fix = "check that the source has rows" if not any(rows.values()) else f"add {name} rows to the source"
            raise DataError(name, f"the split has no rows; all splits have {sum(rows.values())}", fix)
        what = f"none of {rows['train']} training rows fell into this split at a share of {getattr(split, name)}"
        fix = f"raise data.split.{name}, add rows, or give the split its own files"
        fix += f"; `{split.stratify}` (data.split.stratify) may have too many values" if split.stratify else ""
        raise DataError(name, what, fix)


def divide_batches_into_parts(batches: Batches) -> Iterator[Iterator[SourceBatch]]:
    """Divide the rows of a split; read each part to its end before the next."""
    first = _first(batches)
    size = _part_rows(first)
    rest: SourceBatch | None = None
    remaining = chain(first, batches)

    def part() -> Iterator[SourceBatch]:
        nonlocal rest
        missing = size
        while rest and missing:
            batch, rest = rest.divide(missing)
            missing -= len(batch.rows)
            yield batch
            rest = rest or next(remaining, None)

    rest = next(remaining, None)
    while rest:
        yield part()


def divide_files_into_parts(files: Sequence[FileRowIndex]) -> Iterator[tuple[FileRowRange, ...]]:
    """Divide the rows of a split into the same parts as `divide_batches_into_parts`, without reading them; a part can have pieces of several files."""
    with contextlib.closing(read_file_ranges(file.piece(0, _MEASURED_ROWS) for file in files if file.rows)) as batches:
        size = _part_rows(_first(batches))
    part, missing = list[FileRowRange](), size
    for file in files:
        row = 0
        while row < file.rows:
            part.append(file.piece(row, missing))
            row += part[-1].rows
            missing -= part[-1].rows
            if not missing:
                yield tuple(part)
                part, missing = [], size
    if part:
        yield tuple(part)


def read_file_ranges(pieces: Iterable[FileRowRange]) -> Batches:
    """Yield the rows of several pieces."""
    for piece in pieces:
        yield from piece.batches()


def _first(batches: Batches) -> list[SourceBatch]:
    """Read the batches that the first rows are in."""
    first, count = list[SourceBatch](), 0
    while count < _MEASURED_ROWS and (batch := next(batches, None)):
        first.append(batch)
        count += len(batch.rows)
    return first


def _part_rows(first: Sequence[SourceBatch]) -> int:
    """Return the rows of a part of the split that begins with these batches."""
    count = size = 0
    for batch in first:
        measured = batch.rows.slice(0, _MEASURED_ROWS - count)
        count, size = count + len(measured), size + sum(map(_values_bytes, measured.columns))
    rows = _PART_BYTES * count // size if size else PART_ROWS
    return min(PART_ROWS, 1 << max(0, rows.bit_length() - 1))


def _values_bytes(column: pa.Array) -> int:
    """Return the bytes of a column's values, as Arrow has them if it can, however they are stored: parts stay the same."""
    if column.type.equals(JSON):
        with contextlib.suppress(pa.ArrowException, ArithmeticError, TypeError):
            column = pa.array(values_of_column(column))
    return int(column.nbytes)

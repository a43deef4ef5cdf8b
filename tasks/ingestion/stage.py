"""ingest: the rows of one or several sources in, the three splits out; the rows are unchanged, but for a `row_id`.

    runs/<recipe>/raw/{train,validation,test}/      Parquet shards, see tasks.shards.split_rows
    runs/<recipe>/raw/corpus/                       the documents of `data.corpus`, if there is one
    runs/<recipe>/raw/corrections/                  the rows of `data.corrections`, if there are some
    runs/<recipe>/raw/suites/<name>/                the rows of `evaluation.suites`
    runs/<recipe>/raw/source.json                   the report: the source's revision, the columns, the number of rows

`row_id` is a row's position in the sources, counted over all of their splits. If a source lacks a split, some of its
training rows go there. A hash of a row's content decides, or of the columns in `group_by`, so a row keeps its split when other
rows are added, removed or moved. With `split.by: time`, the newest rows go there.

Each part of a split of a source (tasks.ingestion.parts) gives one shard of a split: rows that are appended leave the shards of earlier
parts, and those of other sources, as they are.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from params import DataError, RecipeError
from params.foundation.artifacts import CORPUS, CORRECTIONS, SPLITS, SUITES, Artifacts, replace_folder_atomically
from params.schema import Launch
from params.sections.data import Data, Source, Split
from params.sections.evaluation import Suite
from tasks.ingestion.parquet import SourceColumn, widen_schema_in_place, write_split_schema
from tasks.ingestion.parts import check_columns, write_parts
from tasks.ingestion.placement import PlacedPart, TimeLimits, keep_smallest_hashes, place_by_time
from tasks.ingestion.report import IngestReport
from tasks.ingestion.row_choice import SOURCE, RowChoice, source_name
from tasks.ingestion.source import OpenedSource, naming_source, open_source, wait_for_answers
from tasks.ingestion.split_assigner import SplitAssigner, row_position
from tasks.ingestion.stratify import give_each_value_a_training_row
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows, type_name
from tasks.shards.times import NO_TIME, iso_text
from tasks.stage_inputs import StageInputsSnapshot
from tasks.stages import save_report
from trainer.data.shards import Manifest, Shard, folder_sha256

logger = logging.getLogger(__name__)
_LATEST_S = 86_400
"""How much later than now a row may be: clocks of other zones and machines differ."""


@dataclass
class _ReadSource:
    key: str
    """In the recipe: `data.source`, or for example `data.sources.feedback`."""
    keys: Source
    opened: OpenedSource
    shares: dict[str, float] = field(default_factory=dict)
    """The share of its training rows for each split that it lacks."""
    parts: list[PlacedPart] = field(default_factory=list)

    @property
    def allowed(self) -> list[str]:
        return [split for split in SPLITS if self.keys.splits is None or split in self.keys.splits]

    @property
    def lacking(self) -> list[str]:
        return [name for name in ("test", "validation") if name not in self.opened.splits and name in self.allowed]

    @property
    def name(self) -> str:
        return source_name(self.key)

    @property
    def rows(self) -> dict[str, int]:
        return {split: sum(p.shards[split].rows for p in self.parts if split in p.shards) for split in SPLITS}

    @property
    def left_out(self) -> Counter[str]:
        found = Counter({"not of data.where": sum(part.written.left_out for part in self.parts)})
        return +sum((part.left_out for part in self.parts), found)


def ingest(
    artifacts: Artifacts,
    *,
    data: Data,
    seed: int,
    launch: Launch,
    suites: Sequence[Suite] = (),
    inputs: StageInputsSnapshot | None = None,
) -> IngestReport:
    """Read the rows of a recipe's sources and write them by split; those of `data.corpus` and the like have no splits.

    Raises:
        RecipeError: the recipe's source or split is not possible.
        DataError: a row cannot be read, its types do not fit the earlier rows, or a split has no rows.
        HubRefusedError: the Hub refuses access to the dataset.
        TransientError: the Hub or database cannot be reached.
        StorageError: the disk is full; the earlier rows are unchanged.
    """
    with (
        replace_folder_atomically(artifacts.raw) as folder,
        ShardWorkers(artifacts, "ingest", launch, inputs, imports=[__name__, "tasks.ingestion.parts"]) as workers,
    ):
        workers.expect_as_before()  # while the files are looked at
        sources = [_open(f"data.{key}", keys, artifacts, workers) for key, keys in data.row_sources.items()]
        for source in sources:
            source.shares = _shares(source, sources, data.split)
        columns = _write_splits(sources, data, seed, folder=folder, workers=workers)
        times, learned = _place(sources, data, folder)
        shards = {split: _shards_of(sources, split) for split in SPLITS}
        for split in SPLITS:
            write_split_schema(folder / split, columns, data.group_by, times)
            Manifest.write(folder / split, shards[split])
        if data.split.stratify and any(source.shares for source in sources):
            _stratify(data.split.stratify, sources, columns, shards, seed=seed, folder=folder)
        whole = _open_whole_sources(artifacts, data, suites, workers)
        for name, source in whole.items():
            _write_whole(source, folder / name, workers, seed)
        report = _report_of(folder, sources, whole, shards, learned)
        _refuse_empty_splits(report, sources, data.split)
        save_report(report, folder / artifacts.report("ingest").name)
    return report


def _open(key: str, keys: Source, artifacts: Artifacts, workers: ShardWorkers) -> _ReadSource:
    with naming_source(key):
        return _ReadSource(key, keys, open_source(keys, artifacts.root, workers.memory))


def _open_whole_sources(
    artifacts: Artifacts, data: Data, suites: Sequence[Suite], workers: ShardWorkers
) -> dict[str, _ReadSource]:
    """Open the sources that have no splits, by the folder that gets their rows; without corrections while none has been written."""
    named: dict[str, tuple[str, Source]] = {name: (f"data.{name}", keys) for name, keys in data.whole_sources.items()}
    if data.corrections and wait_for_answers(data.corrections, artifacts.root):
        del named[CORRECTIONS]
    for number, suite in enumerate(suites):
        named[f"{SUITES}/{suite.name}"] = f"evaluation.suites.{number}.source", suite.source
    return {name: _open(key, keys, artifacts, workers) for name, (key, keys) in named.items()}


def _report_of(
    folder: Path,
    sources: Sequence[_ReadSource],
    whole: Mapping[str, _ReadSource],
    shards: Mapping[str, Sequence[Shard]],
    learned_until: str,
) -> IngestReport:
    rows = {split: SplitRows(folder / split) for split in SPLITS}
    return IngestReport(
        source=", ".join(dict.fromkeys(source.keys.kind for source in sources)),
        revision=" ".join(f"{one.name}={one.opened.revision}".removeprefix("=") for one in sources),
        corpus_revision=whole[CORPUS].opened.revision if CORPUS in whole else "",
        rows={split: len(rows[split]) for split in SPLITS},
        columns={field.name: type_name(field.type) for field in rows["train"].schema},
        data_sha256={split: folder_sha256(folder / split, shards.get(split, ())) for split in (*SPLITS, *whole)},
        sources={source.name: source.rows for source in sources if source.name},
        left_out=dict(sum((source.left_out for source in sources), Counter[str]())),
        learned_until=learned_until,
    )


def _shares(source: _ReadSource, sources: Sequence[_ReadSource], split: Split) -> dict[str, float]:
    """Return which share of the training rows of a source goes to each split that it lacks."""
    if split.by != "hash":
        return {}
    shares = dict[str, float]()
    for name in source.lacking:
        share = float(getattr(split, name))
        if share:
            shares[name] = share
        elif not any(name in other.opened.splits for other in sources):
            what = f"there would be no {name} rows: the source has no such split, and the share is 0"
            fix = "set a share such as 0.05, or give the split its own files"
            raise RecipeError.at(f"data.split.{name}", what, fix)
    total = sum(shares.values())
    if total >= 1:
        fix = "choose shares that add up to less than 1"
        raise RecipeError.at("data.split", "the shares leave no training rows", fix)
    if shares and "train" not in source.allowed:  # all of its rows are held out
        return {name: share / total for name, share in shares.items()} | {source.lacking[-1]: 1.0}
    return shares


def _write_splits(
    sources: Sequence[_ReadSource], data: Data, seed: int, *, folder: Path, workers: ShardWorkers
) -> dict[str, SourceColumn]:
    """Write the rows of all splits, each of which has a folder then, and return their columns."""
    columns = _write_rows(sources, data, dict.fromkeys(data.group_by, False), seed, folder=folder, workers=workers)
    mixed = [name for name, column in columns.items() if column.is_mixed]
    # rows with 7 belong to those with "7"
    if any(source.shares for source in sources) and {*mixed} & {*data.group_by}:
        for split in SPLITS:
            shutil.rmtree(folder / split, ignore_errors=True)
        group_by = {name: name in mixed for name in data.group_by}
        columns = _write_rows(sources, data, group_by, seed, folder=folder, workers=workers)
    for name in mixed:
        found, kind = columns[name].found, type_name(columns[name].type)
        logger.warning("ingest: column `%s` holds %s: it is read as %s", name, found, kind)
    for split in SPLITS:
        (folder / split).mkdir(exist_ok=True)
    return columns


def _write_rows(
    sources: Sequence[_ReadSource],
    data: Data,
    group_by: Mapping[str, bool],
    seed: int,
    *,
    folder: Path,
    workers: ShardWorkers,
) -> dict[str, SourceColumn]:
    """Write the rows of all splits of the sources, and return their columns."""
    columns, row_id = dict[str, SourceColumn](), 0
    for source in sources:
        source.parts.clear()
        choice = RowChoice.of(source.key, source.keys, data.time_column)
        with naming_source(source.key):
            for split in source.opened.splits:
                to = split if split in source.allowed else source.allowed[0]
                division = SplitAssigner(to, source.shares if split == "train" else {}, group_by, seed)
                for part in write_parts(source.opened, split, choice, division, folder=folder, workers=workers):
                    widen_schema_in_place(columns, part.columns)
                    known = {"first_row_id": row_id, "source": source.name or None, "weight": source.keys.weight}
                    shards = {name: shard.model_copy(update=known) for name, shard in part.shards.items()}
                    source.parts.append(PlacedPart(part, source.allowed, shards))
                    row_id += part.rows
            _check_columns_of(source, choice, data)
    return columns


def _check_columns_of(source: _ReadSource, choice: RowChoice, data: Data) -> None:
    """Check that a source that has rows has the columns that the recipe names."""
    names = {name for part in source.parts for name in part.written.names}
    if names:
        choice.check_names(names)
    columns = sorted({name for part in source.parts for name in part.written.columns})
    if columns:
        check_columns(columns, data.group_by)
        check_columns(columns, [data.time_column] if data.time_column else [], "data.time_column")


def _place(sources: Sequence[_ReadSource], data: Data, folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Move the rows whose place all rows decide, and return what is known of their times, and until when the training rows are."""
    times, learned = None, ""
    if limits := TimeLimits.of(data):
        logger.info("ingest: times in `%s` that name no zone are read as UTC", limits.column)
        parts = [part for source in sources for part in source.parts]
        newest, until = place_by_time(folder, parts, limits, int((time.time() + _LATEST_S) * 1e6))
        times = {"column": limits.column, "newest": newest, "split": data.split.by}
        learned = iso_text(until) if until != NO_TIME else ""
    for source in sources:
        if source.keys.max_rows and source.parts:
            keep_smallest_hashes(folder, source.parts, source.keys.max_rows)
        for reason, count in source.left_out.items():
            logger.info("ingest: left out %d rows of %s: %s", count, source.key, reason)
    return times, learned


def _shards_of(sources: Sequence[_ReadSource], split: str) -> list[Shard]:
    return [part.shards[split] for source in sources for part in source.parts if split in part.shards]


def _stratify(
    by: str,
    sources: Sequence[_ReadSource],
    columns: Mapping[str, SourceColumn],
    shards: Mapping[str, list[Shard]],
    *,
    seed: int,
    folder: Path,
) -> None:
    check_columns(list(columns), [by], "data.split.stratify")
    held_out = {split for source in sources for split in source.shares}
    if any(split in held_out for source in sources for split in source.opened.splits):
        what = "some sources have held-out rows of their own, and others give a share of their rows"
        raise RecipeError.at("data.split.stratify", what, "give all sources the same splits, or remove the key")

    def position(row: Mapping[str, Any]) -> float:
        return row_position({name: value for name, value in row.items() if name != SOURCE or not sources[0].name}, seed)

    in_order = [name for name in ("test", "validation") if name in held_out]
    if moved := give_each_value_a_training_row(folder, shards, by, in_order, position):
        message = "ingest: a row of each of %d value(s) of `%s` goes to train, where a hash had put none"
        logger.info(message, moved, by)
    for split in SPLITS:
        Manifest.write(folder / split, shards[split])


def _write_whole(source: _ReadSource, folder: Path, workers: ShardWorkers, seed: int) -> None:
    """Write the rows of a source that has no splits, all to one folder."""
    staging, data = folder.with_name(f".{folder.name}"), Data(source=source.keys)
    (staging / "train").mkdir(parents=True)
    columns = _write_rows([source], data, {}, seed, folder=staging, workers=workers)
    _place([source], data, staging)
    if not (shards := _shards_of([source], "train")):
        raise DataError(source.key, "has no rows", "add some, or remove it")
    write_split_schema(staging / "train", columns)
    Manifest.write(staging / "train", shards)
    (staging / "train").rename(folder)
    staging.rmdir()


def _refuse_empty_splits(report: IngestReport, sources: Sequence[_ReadSource], split: Split) -> None:
    rows = report.rows
    for name in SPLITS:
        if rows[name]:
            continue
        if reasons := ", ".join(f"{count} {reason}" for reason, count in report.left_out.items()):
            reasons = f"; rows that were left out: {reasons}"
        if any(name in source.opened.splits for source in sources) and (name != "train" or split.by == "hash"):
            fix = "check that the source has rows" if not any(rows.values()) else f"add {name} rows to the source"
            raise DataError(name, f"the split has no rows; all splits have {sum(rows.values())}{reasons}", fix)
        if split.by == "time":
            what = f"no row is of its time (data.split.{name} is {getattr(split, name, 'what is left')}){reasons}"
            raise DataError(name, what, "choose other spans in data.split, or add rows")
        what = f"none of {rows['train']} training rows fell into this split at a share of {getattr(split, name)}"
        fix = f"raise data.split.{name}, add rows, or give the split its own files"
        fix += f"; `{split.stratify}` (data.split.stratify) may have too many values" if split.stratify else ""
        raise DataError(name, what, fix)

"""Write the rows that pass, and those that fail.

The good rows stay in source order and in the shards of the raw rows. All failing rows are in quarantine.parquet, the first ones
on the page report.html.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from params.foundation.artifacts import SPLITS
from tasks.validation.check_results import CheckResult, quarantined_positions, reasons_at_positions
from tasks.validation.checks import ROW_IS_IN_ONE_SPLIT
from tasks.validation.label_checks import ROW_IS_KNOWN
from tasks.validation.page import ShownRow, render_validation_page
from tasks.validation.raw_rows import (
    NOTHING,
    ORDER,
    Positions,
    RawRows,
    RawShardWork,
    positions_in_range,
    union_of_positions,
)
from tasks.validation.report import ValidationReport, shorten_value
from trainer.data.shards import ROW_ID, Shard

MAX_ROWS_ON_PAGE = 50
_GROUP_ROWS = 65_536
"""Rows of a Parquet row group; they are in memory."""


@dataclass(frozen=True)
class SeparationPlan:
    """Which rows go where, and why; nothing is written yet."""

    rows: RawRows
    results: Sequence[CheckResult]
    aside: Positions
    report: ValidationReport

    @classmethod
    def of(cls, rows: RawRows, results: Sequence[CheckResult], max_quarantined: float) -> Self:
        aside = quarantined_positions(results)
        bad = quarantined_positions([result for result in results if result.expectation.type != ROW_IS_KNOWN])
        by_time = rows.splits["train"].times.get("split") == "time"
        no_mistake = [result for result in results if by_time or result.expectation.type == ROW_IS_IN_ONE_SPLIT]
        bad = np.setdiff1d(bad, _known_from_later(rows, no_mistake))
        report = ValidationReport(
            rows_in=rows.remaining(NOTHING),
            rows_out=rows.remaining(aside),
            quarantined=len(aside),
            share=len(bad) / max(1, len(rows)),
            max_quarantined=max_quarantined,
            checks=[result.report(rows) for result in results],
        )
        return cls(rows, results, aside, report)


def _known_from_later(rows: RawRows, results: Sequence[CheckResult]) -> Positions:
    """Return the positions of the rows that repeat one of another split, or belong to its group: by time and of several sources, no mistake."""
    found = list[Positions]()
    for result in results:
        if (repeats := result.found.repeats) is not None and result.found.failing is not None:
            ends = np.array([rows.span(split).stop for split in ORDER])
            splits = [np.searchsorted(ends, own, side="right") for own in (result.found.failing, repeats[0])]
            found.append(result.found.failing[splits[0] != splits[1]])
    return union_of_positions(found)


def write_good_rows(folder: Path, plan: SeparationPlan) -> None:
    """Write the rows of each split but those that go to quarantine; a shard without good rows has no file.

    A shard without bad rows is copied. What is left of the others is kept for the next run.
    """
    rows, quarantined = plan.rows, plan.aside
    bad = [len(positions_in_range(quarantined, part.start, part.stop)) for part in rows.parts]
    mixed = [part for part, count in zip(rows.parts, bad, strict=True) if 0 < count < len(part.rows)]
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
    paths = [folder / part.split / part.rows.shard.name for part in mixed]
    written = iter(rows.run(write_good_shard_rows, mixed, what="good rows", columns=(), skip=quarantined, paths=paths))
    kept: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    for part, count in zip(rows.parts, bad, strict=True):
        shard = part.rows.shard
        if not count:
            shutil.copyfile(part.rows.manifest.path(shard), folder / part.split / shard.name)
            kept[part.split].append(shard)
        elif count < shard.rows:
            kept[part.split].append(shard.model_copy(update=next(written)))
    for split in SPLITS:
        rows.splits[split].write_manifest(folder / split, kept[split])


def write_good_shard_rows(work: RawShardWork) -> dict[str, Any]:
    """Write the good rows of one shard, and return what the manifest says of the new one."""
    keep = np.ones(len(work.part.rows), np.bool_)
    keep[work.skip] = False
    assert work.path
    return work.part.rows.write_some(keep, work.path)


def write_failing_rows_and_page(folder: Path, recipe: str, plan: SeparationPlan, *, failures: list[str]) -> None:
    """Write quarantine.parquet and report.html; if the stage fails, they also hold the rows that made it fail."""
    rows, results = plan.rows, plan.results
    positions = union_of_positions([result.rejected for result in results])
    _write_quarantine(folder / "quarantine.parquet", rows, results, positions)
    checks = zip(results, plan.report.checks, strict=True)
    stopping = union_of_positions([result.failing for result, check in checks if check.stops])
    spans = [rows.span(split) for split in SPLITS]
    in_order = np.concatenate([positions_in_range(positions, span.start, span.stop) for span in spans])
    is_first = np.isin(in_order, stopping)
    shown = _shown(rows, results, np.concatenate([in_order[is_first], in_order[~is_first]])[:MAX_ROWS_ON_PAGE])
    page = render_validation_page(plan.report, recipe=recipe, failures=failures, rows=shown, failing=len(positions))
    (folder / "report.html").write_text(page, encoding="utf-8")


def _write_quarantine(path: Path, rows: RawRows, results: Sequence[CheckResult], positions: Positions) -> None:
    empty = _table(rows.splits["train"].with_said().schema.empty_table(), "", [])
    with pq.ParquetWriter(path, empty.schema) as writer:
        pending = empty
        for table in _tables(rows, results, positions):
            pending = pa.concat_tables([pending, table])
            while len(pending) >= _GROUP_ROWS:
                writer.write_table(pending.slice(0, _GROUP_ROWS).combine_chunks())
                pending = pending.slice(_GROUP_ROWS)
        if len(pending) or len(positions) < _GROUP_ROWS:
            writer.write_table(pending.combine_chunks())


def _tables(rows: RawRows, results: Sequence[CheckResult], positions: Positions) -> Iterator[pa.Table]:
    """Yield the failing rows of each shard that has some, in the order of the splits."""
    found = [(part, positions_in_range(positions, part.start, part.stop)) for s in SPLITS for part in rows.parts_of(s)]
    found = [each for each in found if len(each[1])]
    said = {name: str(field.type) for name, field in rows.splits["train"].said.items()}
    parts, columns = [part for part, _ in found], [ROW_ID, *rows.schema.names]
    tables = rows.run(read_failing_shard_rows, parts, what="failing rows", columns=columns, skip=positions, said=said)
    for (part, own), bad in zip(found, tables, strict=True):
        yield _table(bad, part.split, reasons_at_positions(results, rows, own))


def read_failing_shard_rows(work: RawShardWork) -> pa.Table:
    """Return the failing rows of one shard: those that the others skip."""
    return work.part.with_said().table().take(work.skip)


def _table(bad: pa.Table, split: str, why: list[list[str]]) -> pa.Table:
    columns = {
        "row_id": bad["row_id"],
        "split": pa.array([split] * len(bad), pa.string()),
        "reasons": pa.array(why, pa.list_(pa.string())),
    }
    columns |= {(f"source_{c}" if c in columns else c): bad[c] for c in bad.column_names if c != "row_id"}
    return pa.table(columns)


def _shown(rows: RawRows, results: Sequence[CheckResult], positions: Positions) -> list[ShownRow]:
    columns = [c for c in rows.schema.names if c != "row_id"][:12]
    ordered = np.sort(positions)
    why = dict(zip(ordered.tolist(), reasons_at_positions(results, rows, ordered), strict=True))
    picked = rows.pick(positions.tolist(), columns, said=True)
    return [
        ShownRow(
            row_id=picked[position]["row_id"],
            split=rows.split_of(position),
            reasons=why[position],
            values=[(name, shorten_value(picked[position][name], 240)) for name in columns],
        )
        for position in positions.tolist()
    ]

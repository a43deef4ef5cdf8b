"""Check rows that pass or fail by themselves, one shard at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from params.schema import Expectation
from tasks.validation.expectations import as_text, passes, run_expectations
from tasks.validation.kinds import columns_read
from tasks.validation.raw_rows import NOTHING, PartWork, Positions, RawRows
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import Row


@dataclass(frozen=True)
class RowCheck:
    """What a check of rows found in one shard or in all."""

    success: bool
    failing: Positions | None
    """Positions of the failing rows; None for a check of a column's type, which names no rows."""
    observed: object = None
    considered: int = 0
    """Number of rows that can fail."""


def check_rows(expectations: Sequence[Expectation], rows: RawRows, skip: Positions) -> list[RowCheck]:
    """Check all rows but those at the positions in `skip`, and return one result for each expectation."""
    if not expectations:
        return []
    columns = list(dict.fromkeys(name for e in expectations for name in columns_read(e, rows.schema)))
    as_objects = rows.as_objects(columns)
    by_part = rows.run(
        partial(check_part, expectations, columns, as_objects),
        rows.parts,
        what="checks of rows",
        columns=columns,
        skip=skip,
        expectations=[as_text(expectation) for expectation in expectations],
        as_objects=sorted(as_objects),
    )
    return [_sum(e, rows, results) for e, results in zip(expectations, zip(*by_part, strict=True), strict=True)]


def check_part(
    expectations: Sequence[Expectation], columns: Sequence[str], as_objects: frozenset[str], work: PartWork
) -> list[RowCheck]:
    """Check the rows of one shard."""
    found = run_expectations(expectations, work.part.frame(columns, as_objects, work.skip))
    return [RowCheck(one.success, one.positions, one.observed, one.considered) for one in found]


def _sum(expectation: Expectation, rows: RawRows, by_part: Sequence[RowCheck]) -> RowCheck:
    if any(found.failing is None for found in by_part):
        return RowCheck(all(found.success for found in by_part), None, by_part[0].observed)
    failing = _positions(rows, [found.failing for found in by_part if found.failing is not None])
    considered = sum(found.considered for found in by_part)
    return RowCheck(passes(expectation, len(failing), considered), failing, considered=considered)


def check_each_row(
    reject_reason: Callable[[Row], str | None], rows: RawRows, skip: Positions, **settings: Any
) -> RowCheck:
    """Check the rows one by one with a function of the objective, which returns what is wrong with a row, or None.

    The rows have no `row_id`. `settings` are all that the function depends on, as JSON.
    """
    columns = [name for name in rows.schema.names if name != ROW_ID]
    work = partial(rejected_rows, reject_reason)
    what = "checks by the objective"
    failing = _positions(rows, rows.run(work, rows.parts, what=what, columns=columns, skip=skip, **settings))
    return RowCheck(not len(failing), failing)


def rejected_rows(reject_reason: Callable[[Row], str | None], work: PartWork) -> Positions:
    """Return the positions of the rows of one shard that the objective rejects."""
    rows = work.part.each(work.skip, work.columns)
    return np.array([position for position, row in rows if reject_reason(row) is not None], np.int64)


def _positions(rows: RawRows, in_parts: Sequence[Positions]) -> Positions:
    return np.concatenate([NOTHING, *(own + part.start for part, own in zip(rows.parts, in_parts, strict=True))])

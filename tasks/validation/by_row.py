"""Check rows that pass or fail by themselves, one shard at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from params.schema import Expectation
from tasks.validation.expectations import passes, run_expectations
from tasks.validation.kinds import columns_read
from tasks.validation.raw_rows import NOTHING, Part, Positions, RawRows, within
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
    by_part = [
        check_part(part, expectations, columns, as_objects, within(skip, part.start, part.stop)) for part in rows.parts
    ]
    return [_sum(e, results) for e, results in zip(expectations, zip(*by_part, strict=True), strict=True)]


def check_part(
    part: Part, expectations: Sequence[Expectation], columns: Sequence[str], as_objects: frozenset[str], skip: Positions
) -> list[RowCheck]:
    """Check the rows of one shard."""
    found = run_expectations(expectations, part.frame(columns, as_objects, skip))
    return [RowCheck(one.success, one.positions, one.observed, one.considered) for one in found]


def _sum(expectation: Expectation, by_part: Sequence[RowCheck]) -> RowCheck:
    if any(found.failing is None for found in by_part):
        return RowCheck(all(found.success for found in by_part), None, by_part[0].observed)
    failing = np.concatenate([NOTHING, *(found.failing for found in by_part if found.failing is not None)])
    considered = sum(found.considered for found in by_part)
    return RowCheck(passes(expectation, len(failing), considered), failing, considered=considered)


def check_each_row(reject_reason: Callable[[Row], str | None], rows: RawRows, skip: Positions) -> RowCheck:
    """Check the rows one by one with a function of the objective, which returns what is wrong with a row, or None."""
    rejected = [rejected_rows(part, reject_reason, within(skip, part.start, part.stop)) for part in rows.parts]
    failing = np.concatenate([NOTHING, *rejected])
    return RowCheck(not len(failing), failing)


def rejected_rows(part: Part, reject_reason: Callable[[Row], str | None], skip: Positions) -> Positions:
    """Return the positions of the rows of one shard that the objective rejects."""
    return np.array([position for position, row in part.each(skip) if reject_reason(row) is not None], np.int64)

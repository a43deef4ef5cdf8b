"""Check rows that pass or fail by themselves, one shard at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from params.schema import Expectation
from tasks.validation.expectations import ExpectationResult, passes, run_expectations
from tasks.validation.kinds import columns_read
from tasks.validation.raw_rows import NOTHING, Part, Positions, RawRows, within
from trainer.objectives.bases.objective import Row


@dataclass(frozen=True)
class RowCheck:
    """What the checks of rows found in all shards."""

    success: bool
    failing: Positions | None
    """Positions of the failing rows; None for a check of a column's type, which names no rows."""
    observed: object = None


def check_rows(expectations: Sequence[Expectation], rows: RawRows, skip: Positions) -> list[RowCheck]:
    """Check all rows but those at the positions in `skip`, and return one result for each expectation."""
    if not expectations:
        return []
    columns = list(dict.fromkeys(name for e in expectations for name in columns_read(e, rows.schema)))
    as_objects = rows.as_objects(columns)
    by_part = [check_part(part, expectations, columns, as_objects, skip) for part in rows.parts]
    return [_sum(e, results) for e, results in zip(expectations, zip(*by_part, strict=True), strict=True)]


def check_part(
    part: Part, expectations: Sequence[Expectation], columns: Sequence[str], as_objects: frozenset[str], skip: Positions
) -> list[ExpectationResult]:
    """Check the rows of one shard."""
    return run_expectations(expectations, part.frame(columns, as_objects, within(skip, part.start, part.stop)))


def _sum(expectation: Expectation, results: Sequence[ExpectationResult]) -> RowCheck:
    if any(result.rows is None for result in results):
        return RowCheck(all(result.success for result in results), None, results[0].observed)
    failing = np.concatenate([NOTHING, *(np.array(result.rows, np.int64) for result in results)])
    return RowCheck(passes(expectation, len(failing), sum(result.considered for result in results)), failing)


def check_each_row(reject_reason: Callable[[Row], str | None], rows: RawRows, skip: Positions) -> RowCheck:
    """Check the rows one by one with a function of the objective, which returns what is wrong with a row, or None."""
    rejected = [rejected_rows(part, reject_reason, within(skip, part.start, part.stop)) for part in rows.parts]
    failing = np.concatenate([NOTHING, *rejected])
    return RowCheck(not len(failing), failing)


def rejected_rows(part: Part, reject_reason: Callable[[Row], str | None], skip: Positions) -> Positions:
    """Return the positions of the rows of one shard that the objective rejects."""
    return np.array([position for position, row in part.each(skip) if reject_reason(row) is not None], np.int64)

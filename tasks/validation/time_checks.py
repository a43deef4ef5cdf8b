"""The check of `data.time_column`: each row has a time that can be read, and none later than the newest one that ingest took for true."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from params.sections.rows import Expectation
from tasks.shards.times import NO_TIME, iso_text, read_times, time_of_value
from tasks.validation.check_results import CheckResult
from tasks.validation.expectations import ExpectationResult
from tasks.validation.raw_rows import Positions, RawRows, RawShardWork, union_of_positions
from trainer.objectives.bases.objective import Row

TIME_IS_KNOWN: Final = "time_is_known"
"""The check of a time; not an expectation of Great Expectations."""


def check_times(rows: RawRows) -> list[CheckResult]:
    """Look for rows without a time, with one that cannot be read, or with one in the future: nobody knows which split they belong to."""
    times = rows.splits["train"].times
    if not times:
        return []
    column, newest = times["column"], times["newest"]
    work = partial(find_rows_without_time, column, newest)
    found = rows.run(work, rows.parts, what="times", columns=[column], newest=newest)
    failing = union_of_positions([own + part.start for part, own in zip(rows.parts, found, strict=True)])
    result, check = ExpectationResult(not len(failing), failing), Expectation(type=TIME_IS_KNOWN, column=column)
    return [CheckResult("recipe", check, result, partial(_explain, column, newest))]


def find_rows_without_time(column: str, newest: int, work: RawShardWork) -> Positions:
    """Return the positions of the rows of one shard without a time, or with one after the newest."""
    times = read_times(work.part.table([column])[column])
    return np.flatnonzero((times == NO_TIME) | (times > newest)).astype(np.int64)


def _explain(column: str, newest: int, row: Row) -> str:
    value = row[column]
    if value is None or not str(value).strip():
        return f"`{column}` is missing"
    if time_of_value(value) == NO_TIME:
        return f"{value!r} is no time such as 2026-01-31T12:00:00Z, nor Unix seconds or milliseconds"
    return f"{value!r} is in the future: the newest time that is not is {iso_text(newest)}"

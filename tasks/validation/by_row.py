"""Check rows that pass or fail by themselves, one part of the source at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from params.schema import Expectation
from tasks.shard_work import settings_key
from tasks.validation.expectations import as_text, passes, run_expectations
from tasks.validation.kinds import columns_read
from tasks.validation.raw_rows import NOTHING, Part, PartWork, Positions, RawRows, within, works_on
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import Row


@dataclass(frozen=True)
class RowCheck:
    """What a check of rows found in some shards or in all."""

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
    texts = [as_text(expectation) for expectation in expectations]
    works = works_on(
        rows.parts, columns=columns, skip=skip, work="checks of rows", expectations=texts, as_objects=sorted(as_objects)
    )
    by_source: dict[int, list[int]] = {}
    for number, part in enumerate(rows.parts):
        by_source.setdefault(part.shard.first_row_id, []).append(number)
    groups = [RowChecks([works[number] for number in numbers]) for numbers in by_source.values()]
    found = rows.workers.run(
        partial(check_together, expectations, as_objects), groups, what="parts of the source (checks of rows)"
    )
    parts = [[rows.parts[number] for number in numbers] for numbers in by_source.values()]
    return [_sum(e, parts, results) for e, results in zip(expectations, zip(*found, strict=True), strict=True)]


@dataclass(frozen=True)
class RowChecks:
    """Checks of the shards of one part of the source, one for each split.

    They are made together, because Great Expectations takes about 0.02 s for a check of no rows.
    """

    works: Sequence[PartWork]
    files: Sequence[Path] = ()

    @property
    def key(self) -> str:
        return settings_key(shards=[work.key for work in self.works])


def check_together(
    expectations: Sequence[Expectation], as_objects: frozenset[str], checks: RowChecks
) -> list[RowCheck]:
    """Check the rows of some shards; their positions are those in the shards put together."""
    import pandas as pd

    frames, start = [], 0
    for work in checks.works:
        part = replace(work.part, start=start)
        frames.append(part.frame(work.columns, as_objects, work.skip + start))
        start = part.stop
    found = run_expectations(expectations, pd.concat(frames))
    return [RowCheck(one.success, one.positions, one.observed, one.considered) for one in found]


def _sum(expectation: Expectation, groups: Sequence[Sequence[Part]], found: Sequence[RowCheck]) -> RowCheck:
    if any(one.failing is None for one in found):
        return RowCheck(all(one.success for one in found), None, found[0].observed)
    own = [_among_all(parts, one.failing) for parts, one in zip(groups, found, strict=True) if one.failing is not None]
    failing = np.sort(np.concatenate([NOTHING, *own]))
    considered = sum(one.considered for one in found)
    return RowCheck(passes(expectation, len(failing), considered), failing, considered=considered)


def _among_all(parts: Sequence[Part], positions: Positions) -> Positions:
    """Return the positions among all rows of positions in some shards put together."""
    found, start = [NOTHING], 0
    for part in parts:
        found.append(within(positions, start, start + part.shard.rows) - start + part.start)
        start += part.shard.rows
    return np.concatenate(found)


def check_each_row(
    reject_reason: Callable[[Row], str | None], rows: RawRows, skip: Positions, **settings: Any
) -> RowCheck:
    """Check the rows one by one with a function of the objective, which returns what is wrong with a row, or None.

    The rows have no `row_id`. `settings` are all that the function depends on, as JSON.
    """
    columns = [name for name in rows.schema.names if name != ROW_ID]
    work = partial(rejected_rows, reject_reason)
    what = "checks by the objective"
    rejected = rows.run(work, rows.parts, what=what, columns=columns, skip=skip, **settings)
    failing = np.concatenate([NOTHING, *(own + part.start for part, own in zip(rows.parts, rejected, strict=True))])
    return RowCheck(not len(failing), failing)


def rejected_rows(reject_reason: Callable[[Row], str | None], work: PartWork) -> Positions:
    """Return the positions of the rows of one shard that the objective rejects."""
    rows = work.part.each(work.skip, work.columns)
    return np.array([position for position, row in rows if reject_reason(row) is not None], np.int64)

"""How an expectation is checked, row by row, by key, or column by column; and the checks of rows and of columns.

- **Row by row**: whether a row passes depends on that row alone. Great Expectations checks each shard by itself.
- **By key**: whether a row passes depends on the rows with the same key. Hashes of all keys are compared (by_key.py).
- **Column by column**: everything else. Great Expectations gets the columns that the expectation names, of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from params.schema import Expectation
from tasks.shards.kept_work import settings_key
from tasks.validation.expectations import ExpectationResult, as_text, columns_of, passes, run_expectations
from tasks.validation.raw_rows import (
    NOTHING,
    SPLIT,
    Part,
    PartWork,
    Positions,
    RawRows,
    frame_of,
    within,
    without,
    works_on,
)
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import Row

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ROW_BY_ROW = frozenset(
    {
        "expect_column_pair_values_a_to_be_greater_than_b",
        "expect_column_pair_values_to_be_equal",
        "expect_column_pair_values_to_be_in_set",
        "expect_column_value_lengths_to_be_between",
        "expect_column_value_lengths_to_equal",
        "expect_column_values_to_be_between",
        "expect_column_values_to_be_dateutil_parseable",
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_be_in_type_list",
        "expect_column_values_to_be_json_parseable",
        "expect_column_values_to_be_null",
        "expect_column_values_to_be_of_type",
        "expect_column_values_to_match_json_schema",
        "expect_column_values_to_match_like_pattern",
        "expect_column_values_to_match_like_pattern_list",
        "expect_column_values_to_match_regex",
        "expect_column_values_to_match_regex_list",
        "expect_column_values_to_match_strftime_format",
        "expect_column_values_to_not_be_in_set",
        "expect_column_values_to_not_be_null",
        "expect_column_values_to_not_match_like_pattern",
        "expect_column_values_to_not_match_like_pattern_list",
        "expect_column_values_to_not_match_regex",
        "expect_column_values_to_not_match_regex_list",
        "expect_multicolumn_sum_to_equal",
        "expect_multicolumn_values_to_be_equal",
        "expect_select_column_values_to_be_unique_within_record",
    }
)
BY_KEY = frozenset({"expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique"})
"""Expectations that flag every row of a group of equal rows, although one of them may stay."""
GROUP_IS_IN_ONE_SPLIT = "group_is_in_one_split"
"""The check of `data.group_by`; not an expectation of Great Expectations."""
BY_COLUMN = frozenset(
    {
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_be_decreasing",
        "expect_column_values_to_be_increasing",
        "expect_column_values_to_not_be_outliers",
    }
)
"""Expectations that name failing rows, but compare each value with those of other rows."""

Kind = Literal["row by row", "by key", "column by column"]


def kind_of(expectation: Expectation, schema: pa.Schema) -> Kind:
    """Return how an expectation is checked on rows with these columns."""
    from pyarrow import types

    if expectation.type in BY_KEY:
        return "by key"
    if expectation.type not in ROW_BY_ROW or condition_columns(expectation) is None:
        return "column by column"
    # pandas writes times of day only if one of the values in the column has one
    kinds = [schema.field(name).type for name in columns_of([expectation]) if name in schema.names]
    of_time = any(types.is_timestamp(kind) or types.is_duration(kind) for kind in kinds)
    return "column by column" if of_time else "row by row"


def columns_read(expectation: Expectation, schema: pa.Schema) -> list[str]:
    """Return the columns whose values the expectation reads, the frame's own column `split` among them."""
    condition = condition_columns(expectation)
    if condition is None:
        return list(dict.fromkeys([*schema.names, SPLIT]))
    own = [] if expectation.type.startswith("expect_table_") else columns_of([expectation])  # a table's names suffice
    named = dict.fromkeys([*own, *condition])
    return [name for name in named if name in schema.names or name == SPLIT]


def condition_columns(expectation: Expectation) -> list[str] | None:
    """Return the columns in `row_condition`; None if it is a query, which can compare a row with others."""
    condition = expectation.arguments.get("row_condition")
    return [] if not condition else _columns_in(condition)


def _columns_in(condition: Any) -> list[str] | None:
    match condition:
        case {"type": "comparison" | "nullity", "column": {"name": str(name)}}:
            return [name]
        case {"type": "and" | "or", "conditions": [*inner]}:
            found = [_columns_in(one) for one in inner]
            return None if None in found else [name for names in found for name in names or ()]
    return None


def without_condition(expectation: Expectation) -> Expectation:
    """Return the expectation for all rows."""
    arguments: Mapping[str, Any] = expectation.arguments
    kept = {k: v for k, v in arguments.items() if k not in ("row_condition", "condition_parser")}
    return Expectation(type=expectation.type, on_failure=expectation.on_failure, **kept)


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


def check_whole_columns(expectations: Sequence[Expectation], rows: RawRows, skip: Positions) -> list[ExpectationResult]:
    """Check all rows but those at the positions in `skip`; the columns that an expectation names are in memory, for all rows.

    Numbers take 8 bytes a row, and text takes its own length. Expectations of the same columns share their frame.
    """
    by_columns: dict[tuple[str, ...], list[int]] = {}
    for number, expectation in enumerate(expectations):
        by_columns.setdefault(tuple(columns_read(expectation, rows.schema)), []).append(number)
    found: dict[int, ExpectationResult] = {}
    for columns, numbers in by_columns.items():
        results = run_expectations([expectations[number] for number in numbers], _frame(rows, columns, skip))
        found.update(zip(numbers, results, strict=True))
    return [found[number] for number in range(len(expectations))]


def whole_frame(rows: RawRows, columns: Sequence[str]) -> pd.DataFrame:
    """Return some columns of all rows as a frame indexed by position."""
    import pandas as pd

    split = None
    if SPLIT in columns:
        lengths = [part.shard.rows for part in rows.parts]
        split = pd.Series([part.split for part in rows.parts], dtype="str").repeat(lengths).reset_index(drop=True)
    return frame_of(rows.table([name for name in columns if name in rows.schema.names]), columns, split)


def _frame(rows: RawRows, columns: Sequence[str], skip: Positions) -> pd.DataFrame:
    """A frame with all columns, of which only some have their values: the others take no memory."""
    import pandas as pd

    read = without(whole_frame(rows, columns), skip)
    nothing = np.broadcast_to(np.zeros(1, np.int8), len(read))
    names = dict.fromkeys([*rows.schema.names, SPLIT])
    values = {name: read[name] if name in columns else pd.Series(nothing, read.index, copy=False) for name in names}
    return pd.DataFrame(values, read.index, copy=False)

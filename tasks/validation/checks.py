"""How an expectation is checked, row by row, by key, or column by column; and the checks of rows and of columns.

- **Row by row**: whether a row passes depends on that row alone. Great Expectations checks each shard by itself.
- **By key**: whether a row passes depends on the rows with the same key. Hashes of all keys are compared (by_key.py).
- **Column by column**: everything else. Great Expectations gets the columns that the expectation names, of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import types

from params.sections.rows import Expectation
from tasks.validation.expectations import (
    ExpectationResult,
    columns_named_by_expectations,
    expectation_key_text,
    is_expectation_met,
    run_expectations,
)
from tasks.validation.raw_rows import (
    SPLIT,
    Positions,
    RawRows,
    RawShardWork,
    ShardWithPositions,
    drop_rows,
    table_to_frame,
    union_of_positions,
)
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import Row

if TYPE_CHECKING:
    import pandas as pd

ROW_BY_ROW = frozenset({
    "expect_column_pair_values_a_to_be_greater_than_b", "expect_column_pair_values_to_be_equal",
    "expect_column_pair_values_to_be_in_set", "expect_column_value_lengths_to_be_between",
    "expect_column_value_lengths_to_equal", "expect_column_values_to_be_between",
    "expect_column_values_to_be_dateutil_parseable", "expect_column_values_to_be_in_set",
    "expect_column_values_to_be_in_type_list", "expect_column_values_to_be_json_parseable",
    "expect_column_values_to_be_null", "expect_column_values_to_be_of_type",
    "expect_column_values_to_match_json_schema", "expect_column_values_to_match_like_pattern",
    "expect_column_values_to_match_like_pattern_list", "expect_column_values_to_match_regex",
    "expect_column_values_to_match_regex_list", "expect_column_values_to_match_strftime_format",
    "expect_column_values_to_not_be_in_set", "expect_column_values_to_not_be_null",
    "expect_column_values_to_not_match_like_pattern", "expect_column_values_to_not_match_like_pattern_list",
    "expect_column_values_to_not_match_regex", "expect_column_values_to_not_match_regex_list",
    "expect_multicolumn_sum_to_equal", "expect_multicolumn_values_to_be_equal",
    "expect_select_column_values_to_be_unique_within_record",
})  # fmt: skip
BY_KEY = frozenset({"expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique"})
"""Expectations that flag every row of a group of equal rows, although one of them may stay."""
GROUP_IS_IN_ONE_SPLIT = "group_is_in_one_split"
"""The check of `data.group_by`; not an expectation of Great Expectations."""
ROW_IS_IN_ONE_SPLIT = "row_is_in_one_split"
"""The same of rows that are equal to the objective."""

Kind = Literal["row by row", "by key", "column by column"]


def expectation_check_kind(expectation: Expectation, schema: pa.Schema) -> Kind:
    """Return how an expectation is checked on rows with these columns."""
    if expectation.type in BY_KEY:
        return "by key"
    if expectation.type not in ROW_BY_ROW or row_condition_columns(expectation) is None:
        return "column by column"
    # pandas writes times of day only if one of the values in the column has one
    kinds = [schema.field(name).type for name in columns_named_by_expectations([expectation]) if name in schema.names]
    of_time = any(types.is_timestamp(kind) or types.is_duration(kind) for kind in kinds)
    return "column by column" if of_time else "row by row"


def columns_read_by_expectation(expectation: Expectation, schema: pa.Schema) -> list[str]:
    """Return the columns whose values the expectation reads, the frame's own column `split` among them."""
    condition = row_condition_columns(expectation)
    if condition is None:
        return list(dict.fromkeys([*schema.names, SPLIT]))
    # a table's names suffice
    own = [] if expectation.type.startswith("expect_table_") else columns_named_by_expectations([expectation])
    named = dict.fromkeys([*own, *condition])
    return [name for name in named if name in schema.names or name == SPLIT]


def row_condition_columns(expectation: Expectation) -> list[str] | None:
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


def without_row_condition(expectation: Expectation) -> Expectation:
    arguments: Mapping[str, Any] = expectation.arguments
    kept = {k: v for k, v in arguments.items() if k not in ("row_condition", "condition_parser")}
    return Expectation(type=expectation.type, on_failure=expectation.on_failure, **kept)


def check_row_by_row(expectations: Sequence[Expectation], rows: RawRows, skip: Positions) -> list[ExpectationResult]:
    """Check all rows but those at the positions in `skip`, and return one result for each expectation."""
    if not expectations:
        return []
    columns = list(dict.fromkeys(name for e in expectations for name in columns_read_by_expectation(e, rows.schema)))
    as_objects = rows.as_objects(columns)
    found = rows.run(
        partial(check_shard_rows, expectations, as_objects),
        rows.parts,
        what="checks of rows",
        columns=columns,
        skip=skip,
        expectations=[expectation_key_text(expectation) for expectation in expectations],
        as_objects=sorted(as_objects),
    )
    return [_sum(e, rows.parts, own) for e, own in zip(expectations, zip(*found, strict=True), strict=True)]


def check_shard_rows(
    expectations: Sequence[Expectation], as_objects: frozenset[str], work: RawShardWork
) -> list[ExpectationResult]:
    return run_expectations(expectations, work.frame(as_objects))


def _sum(
    expectation: Expectation, parts: Sequence[ShardWithPositions], found: Sequence[ExpectationResult]
) -> ExpectationResult:
    if any(one.failing is None for one in found):
        return ExpectationResult(all(one.success for one in found), None, found[0].observed)
    failing = union_of_positions(
        [one.failing + part.start for part, one in zip(parts, found, strict=True) if one.failing is not None]
    )
    considered = sum(one.considered for one in found)
    return ExpectationResult(is_expectation_met(expectation, len(failing), considered), failing, considered=considered)


def check_rows_with_objective(
    reject_reason: Callable[[Row], str | None], rows: RawRows, skip: Positions, **settings: Any
) -> ExpectationResult:
    """Check the rows one by one with a function of the objective, which returns what is wrong with a row, or None.

    The rows have no `row_id`. `settings` are all that the function depends on, as JSON.
    """
    columns = [name for name in rows.schema.names if name != ROW_ID]
    work = partial(find_rejected_positions, reject_reason)
    what = "checks by the objective"
    rejected = rows.run(work, rows.parts, what=what, columns=columns, skip=skip, **settings)
    failing = union_of_positions([own + part.start for part, own in zip(rows.parts, rejected, strict=True)])
    return ExpectationResult(not len(failing), failing)


def find_rejected_positions(reject_reason: Callable[[Row], str | None], work: RawShardWork) -> Positions:
    return np.array([position for position, row in work.each() if reject_reason(row) is not None], np.int64)


def check_column_by_column(
    expectations: Sequence[Expectation], rows: RawRows, skip: Positions
) -> list[ExpectationResult]:
    """Check all rows but those at the positions in `skip`; the columns that an expectation names are in memory, for all rows.

    Numbers take 8 bytes a row, and text takes its own length.
    """
    frames = (_frame(rows, columns_read_by_expectation(expectation, rows.schema), skip) for expectation in expectations)
    return [run_expectations([one], frame)[0] for one, frame in zip(expectations, frames, strict=True)]


def read_columns_as_frame(rows: RawRows, columns: Sequence[str]) -> pd.DataFrame:
    """Return some columns of all rows as a frame indexed by position."""
    import pandas as pd

    split = None
    if SPLIT in columns:
        lengths = [len(part.rows) for part in rows.parts]
        split = pd.Series([part.split for part in rows.parts], dtype="str").repeat(lengths).reset_index(drop=True)
    return table_to_frame(rows.table([name for name in columns if name in rows.schema.names]), columns, split)


def _frame(rows: RawRows, columns: Sequence[str], skip: Positions) -> pd.DataFrame:
    """A frame with all columns, of which only some have their values: the others take no memory."""
    import pandas as pd

    read = drop_rows(read_columns_as_frame(rows, columns), skip)
    nothing = np.broadcast_to(np.zeros(1, np.int8), len(read))
    names = dict.fromkeys([*rows.schema.names, SPLIT])
    values = {name: read[name] if name in columns else pd.Series(nothing, read.index, copy=False) for name in names}
    return pd.DataFrame(values, read.index, copy=False)

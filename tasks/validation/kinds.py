"""How an expectation is checked: row by row, by key, or column by column.

- **Row by row**: whether a row passes depends on that row alone. Great Expectations checks each shard by itself.
- **By key**: whether a row passes depends on the rows with the same key. Hashes of all keys are compared (by_key.py).
- **Column by column**: everything else. Great Expectations gets the columns that the expectation names, of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from params.schema import Expectation
from tasks.validation.expectations import columns_of
from tasks.validation.raw_rows import SPLIT

if TYPE_CHECKING:
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

"""The same rows in one shard and in many give the same verdicts, whatever the kind of check."""

from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params.foundation.hashing import file_sha256
from params.schema import ObjectiveChoice
from params.sections.rows import Expectation
from tasks.shards.split_rows import SCHEMA, SplitRows
from tasks.validation.checks import BY_KEY, ROW_BY_ROW, columns_read_by_expectation, expectation_check_kind
from tests.support.validation import good_rows, run_validation, write_raw
from trainer.data.shards import ROW, ROW_ID, Manifest, Shard

BY_COLUMN = {
    "expect_column_value_z_scores_to_be_less_than",
    "expect_column_values_to_be_decreasing",
    "expect_column_values_to_be_increasing",
    "expect_column_values_to_not_be_outliers",
}
CLASSES = ObjectiveChoice(name="sequence_classification")
TRAIN = {"type": "comparison", "column": {"name": "split"}, "operator": "==", "parameter": "train"}
WITH_KEY = {"type": "and", "conditions": [{"type": "nullity", "column": {"name": "key"}, "is_null": False}, TRAIN]}
ABOVE_MEAN = {"type": "pass_through", "pass_through_filter": "a > a.mean()"}
MIDNIGHT = dt.datetime(2026, 1, 1)
COLUMNS = {
    "text": pa.string(),
    "label": pa.int64(),
    "key": pa.int64(),
    "a": pa.float64(),
    "b": pa.float64(),
    "flag": pa.bool_(),
    "at": pa.timestamp("us"),
    "json": pa.string(),
    "tags": pa.list_(pa.string()),
}
GOOD = ("a good text", 1, None, 0.25, 0.75, True, MIDNIGHT, '{"x": 1}', ["x"])
CHECKS = [
    # row by row
    {"type": "expect_column_value_lengths_to_be_between", "column": "text", "min_value": 5},
    {"type": "expect_column_value_lengths_to_equal", "column": "text", "value": 11, "mostly": 0.2},
    {"type": "expect_column_values_to_be_between", "column": "a", "max_value": 1, "strict_max": True},
    {"type": "expect_column_values_to_be_between", "column": "key", "min_value": 3, "row_condition": WITH_KEY},
    {"type": "expect_column_values_to_be_dateutil_parseable", "column": "text"},
    {"type": "expect_column_values_to_be_in_set", "column": "flag", "value_set": [True]},
    {"type": "expect_column_values_to_be_in_type_list", "column": "flag", "type_list": ["str"]},
    {"type": "expect_column_values_to_be_of_type", "column": "key", "type_": "int"},
    {"type": "expect_column_values_to_be_of_type", "column": "a", "type_": "float64"},
    {"type": "expect_column_values_to_be_of_type", "column": "label", "type_": "str"},
    {"type": "expect_column_values_to_be_json_parseable", "column": "json"},
    {"type": "expect_column_values_to_be_null", "column": "key", "mostly": 0.6},
    {"type": "expect_column_values_to_not_be_null", "column": "flag", "mostly": 0.8},
    {"type": "expect_column_values_to_match_regex", "column": "key", "regex": "^[0-9]+$"},
    {"type": "expect_column_values_to_match_regex_list", "column": "text", "regex_list": ["good", "text"]},
    {"type": "expect_column_values_to_match_strftime_format", "column": "json", "strftime_format": "%Y"},
    {"type": "expect_column_values_to_not_be_in_set", "column": "key", "value_set": [5]},
    {"type": "expect_column_values_to_not_match_regex", "column": "text", "regex": "bad"},
    {"type": "expect_column_values_to_not_match_regex_list", "column": "text", "regex_list": ["bad", "no"]},
    {"type": "expect_column_pair_values_to_be_equal", "column_A": "a", "column_B": "b"},
    {"type": "expect_column_pair_values_a_to_be_greater_than_b", "column_A": "b", "column_B": "a", "mostly": 0.5},
    {"type": "expect_column_pair_values_to_be_in_set", "column_A": "a", "column_B": "b", "value_pairs_set": [[0.25, 0.75]]},
    {"type": "expect_multicolumn_sum_to_equal", "column_list": ["a", "b"], "sum_total": 1},
    {"type": "expect_multicolumn_values_to_be_equal", "column_list": ["a", "b"]},
    {"type": "expect_select_column_values_to_be_unique_within_record", "column_list": ["label", "b"]},
    # by key
    {"type": "expect_column_values_to_be_unique", "column": "text", "on_failure": "quarantine"},
    {"type": "expect_column_values_to_be_unique", "column": "key", "on_failure": "quarantine"},
    {"type": "expect_column_values_to_be_unique", "column": "a", "mostly": 0.1},
    {"type": "expect_column_values_to_be_unique", "column": "at", "row_condition": TRAIN},
    {"type": "expect_compound_columns_to_be_unique", "column_list": ["a", "b"]},
    {"type": "expect_compound_columns_to_be_unique", "column_list": ["a", "key"], "ignore_row_if": "never"},
    {"type": "expect_compound_columns_to_be_unique", "column_list": ["a", "key"], "ignore_row_if": "any_value_is_missing"},
    {
        "type": "expect_compound_columns_to_be_unique",
        "column_list": ["a", "flag"],
        "row_condition": ABOVE_MEAN,
    },
    # column by column
    {"type": "expect_column_values_to_be_increasing", "column": "key"},
    {"type": "expect_column_values_to_be_decreasing", "column": "a"},
    {"type": "expect_column_value_z_scores_to_be_less_than", "column": "b", "threshold": 2, "double_sided": True},
    {"type": "expect_column_values_to_not_be_outliers", "column": "b"},
    {"type": "expect_column_values_to_match_regex", "column": "at", "regex": "00:00:00"},
    {
        "type": "expect_column_values_to_be_between",
        "column": "a",
        "max_value": 0,
        "row_condition": ABOVE_MEAN,
    },
    {"type": "expect_column_mean_to_be_between", "column": "b", "max_value": 0, "row_condition": TRAIN},
    {"type": "expect_column_unique_value_count_to_be_between", "column": "text", "max_value": 1},
    {"type": "expect_column_quantile_values_to_be_between", "column": "a", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[9, 9]]}},
    {"type": "expect_table_row_count_to_equal", "value": 1, "row_condition": TRAIN},
    {"type": "expect_table_columns_to_match_ordered_list", "column_list": ["text"]},
    {"type": "expect_column_to_exist", "column": "nowhere"},
]  # fmt: skip


def row(**changes):
    return dict(zip(COLUMNS, GOOD, strict=True)) | changes


def faulty_rows():
    """A column is null in some shards of four rows and not in others; some values need the rows around them."""
    train = [row(text=f"a good text {i}") for i in range(8)]
    train += [
        row(text=text) for text in ("in test", "in validation", None, "", " ", "no", "bad text here", "same", "same")
    ]
    train += [row(text=f"key {i}", key=key) for i, key in enumerate((2**60, 2**60 + 1, 5, 5, 7, 1, None, 5))]
    numbers = (0.0, -0.0, math.nan, None, math.nan, -0.0, 9.0, 8.0)
    train += [row(text=f"number {i}", a=number, b=-1e6 if i == 5 else 1.0) for i, number in enumerate(numbers)]
    train += [row(text=f"flag {i}", flag=flag, key=100 + i) for i, flag in enumerate((False, False, None, True))]
    train += [row(text=f"at {i}", at=MIDNIGHT + dt.timedelta(hours=i), key=9) for i in range(4)]
    train += [row(text="2026-01-01", json="{", tags=None), row(text="bad same", label=None), row(text="bad same")]
    train += [row(text="only bad", label=7, key=5), row(text="null json", json=None, tags=[])]
    train += [row(text="of another class", label=2)]
    validation = [row(text=text) for text in ("in validation", "in test", "mine")]
    test = [
        row(text=text, label=label) for text, label in (("in test", 1), ("in test", 1), ("other", 1), ("last", None))
    ]
    return {"train": train, "validation": validation, "test": test}


def as_columns(rows):
    return {name: pa.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()}


def written(artifacts):
    files = ("validation.json", "quarantine.parquet", "report.html")
    kept = {split: good_rows(artifacts, split) for split in ("train", "validation", "test")}
    return {name: (artifacts.validated / name).read_bytes() for name in files} | kept


def checks(**default):
    return [Expectation(**(default | arguments)) for arguments in CHECKS]


def test_verdicts_do_not_depend_on_shards(tmp_path, monkeypatch):
    splits = {split: as_columns(rows) for split, rows in faulty_rows().items()}
    found = []
    for size in (1000, 14):
        monkeypatch.setattr("tests.support.tiny.PART_ROWS", size)
        artifacts = write_raw(tmp_path / str(size), **splits)
        report = run_validation(artifacts, *checks(on_failure="report"), objective=CLASSES)
        found.append(written(artifacts))
        assert not artifacts.validation_keys.exists()
    assert found[0] == found[1]
    assert report.quarantined > 10
    failing = {check.type for check in report.checks if check.unexpected_count}
    assert failing >= {check["type"] for check in CHECKS} & (ROW_BY_ROW | BY_KEY | BY_COLUMN)


def test_columns_with_nulls_are_known_without_their_values(tmp_path):
    """A shard may lack a column, or have no value in it at all."""
    tables = [{"n": [1, 2], "flag": [True, None]}, {"flag": [True]}, {"n": [None], "flag": [False]}]
    shards = []
    for number, columns in enumerate(tables):
        table = pa.table({ROW: pa.array(range(len(columns["flag"])), pa.int32()), **columns})
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path)
        shards.append(Shard(name=path.name, rows=len(table), first_row_id=number * 10, sha256=file_sha256(path)))
    Manifest.write(tmp_path, shards)
    pq.write_metadata(pa.schema([(ROW_ID, pa.int64()), ("n", pa.int64()), ("flag", pa.bool_())]), tmp_path / SCHEMA)
    rows = SplitRows(tmp_path)
    parts = [part.table() for part in rows.shards]
    found = [part.with_nulls(["n", "flag"]) for part in rows.shards]
    assert found == [{name for name in ("n", "flag") if table[name].null_count} for table in parts]
    assert found == [{"flag"}, {"n"}, {"n"}]


def test_every_expectation_of_rows_has_a_kind():
    """One that a version of GX adds would be checked on whole columns, in memory, until somebody decides."""
    import great_expectations  # noqa: F401
    from great_expectations.expectations import expectation, registry

    of_rows = (
        expectation.ColumnMapExpectation,
        expectation.ColumnPairMapExpectation,
        expectation.MulticolumnMapExpectation,
    )
    names = registry.list_registered_expectation_implementations()
    known = [name for name in names if issubclass(registry.get_expectation_impl(name), of_rows)]
    assert sorted(known) == sorted([*ROW_BY_ROW, *BY_KEY, *BY_COLUMN])


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"type": "expect_column_values_to_be_in_set", "column": "text", "row_condition": WITH_KEY}, "row by row"),
        (
            {"type": "expect_column_values_to_be_in_set", "column": "text", "row_condition": ABOVE_MEAN},
            "column by column",
        ),
        ({"type": "expect_column_values_to_be_in_set", "column": "at"}, "column by column"),
        ({"type": "expect_column_values_to_be_unique", "column": "at"}, "by key"),
        ({"type": "expect_column_max_to_be_between", "column": "a"}, "column by column"),
        ({"type": "expect_table_row_count_to_equal", "value": 1}, "column by column"),
    ],
)
def test_kind_of(arguments, kind):
    assert expectation_check_kind(Expectation(**arguments), pa.schema(COLUMNS)) == kind


def test_table_checks_read_no_values():
    schema = pa.schema(COLUMNS)
    ordered = Expectation(type="expect_table_columns_to_match_ordered_list", column_list=["text", "a"])
    assert columns_read_by_expectation(ordered, schema) == []
    assert columns_read_by_expectation(Expectation(type="expect_column_max_to_be_between", column="a"), schema) == ["a"]
    rows = Expectation(type="expect_table_row_count_to_equal", value=1, row_condition=WITH_KEY)
    assert columns_read_by_expectation(rows, schema) == ["key", "split"]


@pytest.mark.parametrize(("mostly", "passes"), [(0.9, True), (0.92, False)])
def test_mostly_is_a_share_of_the_values_of_all_shards(tmp_path, monkeypatch, mostly, passes):
    """10 of 11 values are long enough: 0.909. With the nulls it would be 20 of 21, and a shard may have one short value only."""
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 2)
    notes = [None] * 10 + ["long"] * 8 + ["no"]
    held_out = {"text": ["h"], "note": ["long"]}
    train = {"text": [f"text {n}" for n in range(19)], "note": notes}
    check = Expectation(type="expect_column_value_lengths_to_be_between", column="note", min_value=3, mostly=mostly)
    test = held_out | {"text": ["t"]}
    report = run_validation(write_raw(tmp_path, train=train, validation=held_out, test=test), check)
    (found,) = (one for one in report.checks if one.type == check.type)
    assert (found.success, found.unexpected_count) == (passes, 1)
    assert report.quarantined == (0 if passes else 1)

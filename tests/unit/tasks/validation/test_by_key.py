"""Equal rows by hashes: as pandas and the rows' values have it, whatever the type, the shards and the buckets."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from params import ValidationEngineError
from params.sections.rows import Expectation
from tasks.validation import by_key
from tasks.validation.by_key import find_duplicate_rows, row_key_bytes
from tasks.validation.raw_rows import open_raw_rows, table_to_frame
from tests.support.validation import run_validation, workers, write_raw

VALUES = {
    "text": (pa.string(), ["", "a", "a\x00", "a\x00b", "1", "None", "ÿ", None]),
    "int": (pa.int64(), [0, 1, 2**60, 2**60 + 1, -1, None]),
    "unsigned": (pa.uint64(), [0, 2**64 - 1, 2**63, None]),
    "float": (pa.float64(), [0.0, -0.0, math.nan, 1.0, 0.1, 1e300, math.inf, -math.inf, 2.0**60, None]),
    "single": (pa.float32(), [0.0, -0.0, math.nan, 0.5, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [dt.date(1999, 1, 1), dt.date(2026, 1, 1), None]),
    "time": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 1, 0, 0, 0, n, tzinfo=dt.UTC) for n in (0, 1)] + [None]),
    "decimal": (pa.decimal128(5, 2), [decimal.Decimal("1.10"), decimal.Decimal("1.11"), None]),
    "bytes": (pa.binary(), [b"", b"a", b"\xfe", b"\xff", None]),
    "nothing": (pa.null(), [None]),
}


def table_of(rows, kinds):
    columns = {f"{n} {kind}": pa.array([row[n] for row in rows], VALUES[kind][0]) for n, kind in enumerate(kinds)}
    return pa.table(columns | {"text": [f"row {n}" for n in range(len(rows))]})


def keyed_rows():
    kinds = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3)
    return kinds.flatmap(
        lambda own: st.tuples(
            st.just(own),
            st.lists(st.tuples(*(st.sampled_from(VALUES[kind][1]) for kind in own)), min_size=2, max_size=9),
        )
    )


@given(keyed_rows())
@settings(max_examples=150, deadline=None)
def test_keys_are_equal_where_pandas_has_equal_rows(example):
    kinds, rows = example
    table = table_of(rows, kinds).drop_columns("text")
    keys = row_key_bytes(table)
    frame = table_to_frame(table, table.column_names, None)
    first_by_key = [keys.index(key) for key in keys]
    first_by_pandas = [
        next(m for m in range(n + 1) if m == n or frame.iloc[[m, n]].duplicated().any()) for n in range(len(frame))
    ]
    assert first_by_key == first_by_pandas


def same(value):
    """Zero is zero, and NaN is null."""
    if isinstance(value, float):
        return None if math.isnan(value) else value + 0.0
    return value


def reference(table, columns, ignore, set_aside):
    """All in memory: GX's rows, then the first of those with the same values, good rows before bad ones."""
    frame = table_to_frame(table, columns, None)
    missing = frame.isnull()
    compared = frame[~(missing.any(axis=1) if ignore == "any" else missing.all(axis=1))]
    members = compared.index[compared.duplicated(keep=False)].tolist()
    values = table.select(columns).to_pylist()
    first, found = {}, {}
    for position in sorted(members, key=lambda p: (p in set_aside, p)):
        kept = first.setdefault(repr({name: same(value) for name, value in values[position].items()}), position)
        if kept != position:
            found[position] = kept
    return not members, dict(sorted(found.items()))


@given(keyed_rows(), st.sampled_from(["all", "any"]), st.sets(st.integers(0, 8)), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_duplicates_are_those_of_the_whole_table(tmp_path_factory, example, ignore, set_aside, part_rows):
    kinds, rows = example
    table = table_of(rows, kinds)
    names = table.column_names[:-1]
    check = {"type": "expect_column_values_to_be_unique", "column": names[0]}
    if len(names) > 1:
        ignored = {"all": "all_values_are_missing", "any": "any_value_is_missing"}[ignore]
        check = {"type": "expect_compound_columns_to_be_unique", "column_list": names, "ignore_row_if": ignored}
    folder = tmp_path_factory.mktemp("rows")
    aside = np.array(sorted(p for p in set_aside if p < len(rows)), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.tiny.PART_ROWS", part_rows)
        patch.setattr(by_key, "BUCKET_ROWS", 2)
        none = table.slice(0, 0)
        artifacts = write_raw(folder, train=table, validation=none, test=none)
        raw = open_raw_rows(artifacts.raw, {}, {}, workers(folder), folder / "keys")
        found = find_duplicate_rows(Expectation(**check), raw, aside[:0], aside)
    repeats = dict(zip(found.failing.tolist(), found.repeats[0].tolist(), strict=True))
    assert (found.success, repeats) == reference(table, names, ignore, set(aside.tolist()))


def test_lists_cannot_be_compared(tmp_path):
    tags = pa.array([["x"], None], pa.list_(pa.string()))
    held_out = {"text": ["h"], "tags": pa.array([None], tags.type)}
    artifacts = write_raw(tmp_path, train={"text": ["a", "b"], "tags": tags}, validation=held_out, test=held_out)
    with pytest.raises(ValidationEngineError, match="unhashable"):
        run_validation(artifacts, Expectation(type="expect_column_values_to_be_unique", column="tags"))
    assert not artifacts.validation_keys.exists()


def test_unknown_column_in_a_condition_is_an_engine_error(tmp_path):
    condition = {"type": "comparison", "column": {"name": "nowhere"}, "operator": "==", "parameter": 1}
    unique = Expectation(type="expect_column_values_to_be_unique", column="text", row_condition=condition)
    with pytest.raises(ValidationEngineError, match="nowhere"):
        run_validation(write_raw(tmp_path, train={"text": ["a", "a"]}), unique)

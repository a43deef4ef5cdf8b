"""Rows that a later stage could not read: an error with the row's address, and no traceback."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import DataError, RecipeError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.ingestion.batches import MAX_NESTING, to_readable_batch
from tasks.ingestion.formats import read_rows_of_file
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import SplitRows


def run(root: Path, source: dict[str, Any]) -> None:
    """Ingest rows that are divided into splits, and, from files, rows that are not."""
    split = {"validation": 0.3, "test": 0.3}
    ingest(
        Artifacts("divided", root),
        data=Data.model_validate({"source": source, "split": split}),
        seed=1,
        launch=Launch(micro_batch_size=1),
    )
    if source["kind"] == "files":
        source |= dict.fromkeys(("validation", "test"), source["train"])
        ingest(
            Artifacts("whole", root),
            data=Data.model_validate({"source": source, "split": split}),
            seed=1,
            launch=Launch(micro_batch_size=1),
        )


def refused(root: Path, source: dict[str, Any]) -> DataError:
    with pytest.raises(DataError) as caught:
        run(root, source)
    str(caught.value).encode()  # it can be printed
    return caught.value


def write_lines(root: Path, *last: str) -> dict[str, Any]:
    lines = [json.dumps({"text": f"text {i}"}) for i in range(60)]
    (root / "a.jsonl").write_text("\n".join([*lines, *last]), encoding="utf-8")
    return {"kind": "files", "train": "a.jsonl"}


def write_column(root: Path, column: pa.Array) -> dict[str, Any]:
    text = pa.array([f"text {i}" for i in range(len(column))])
    pq.write_table(pa.table({"text": text, "x": column}), root / "a.parquet")
    return {"kind": "files", "train": "a.parquet"}


def nested(kind: str, depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize(
    "value", ["a \ud800 b", ["a", "\ud83d"], {"\ud800": 1}, [{"role": "user", "content": "\udc00"}]]
)
def test_a_value_with_half_of_a_surrogate_pair_is_empty_and_its_row_a_bad_one(
    tmp_path: Path, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    good = value.replace("\ud800", "") if isinstance(value, str) else type(value)()
    lines = [json.dumps({"x": good, "text": f"{i}"}) for i in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, json.dumps({"x": value, "text": "last"})]))
    found = [row for batch in read_rows_of_file(tmp_path / "a.jsonl", "a.jsonl") for row in to_readable_batch(batch)[1]]
    assert found[3] == {"x": None, "text": "last"}
    assert "a.jsonl:4: `x` has half of a surrogate pair" in caplog.text


def test_a_name_with_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, write_lines(tmp_path, r'{"text": "a", "k\ud800": 1}'))
    assert error.where == "a.jsonl:61"
    assert r"the column 'k\ud800' has half of a surrogate pair in its name" in error.what


@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("depth", [MAX_NESTING + 1, 500])
def test_deep_nesting_is_refused(tmp_path: Path, kind: str, depth: int) -> None:
    source = write_lines(tmp_path, json.dumps({"text": "a", "k": nested(kind, depth)}))
    error = refused(tmp_path, source)
    assert (error.where, error.what) == ("a.jsonl:61", "column `k` is nested more than 32 levels deep")


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_deepest_allowed_nesting_can_be_read_again(tmp_path: Path, kind: str) -> None:
    value = nested(kind, MAX_NESTING)
    run(tmp_path, write_lines(tmp_path, json.dumps({"text": "a", "k": value})))
    splits = [SplitRows(tmp_path / "runs/divided/raw" / split) for split in SPLITS]
    assert value in [row["k"] for rows in splits for row in rows.rows()]


def yield_deep_row() -> Any:
    yield {"text": "a"}
    yield {"text": "b", "k": nested("list", 50_000)}


def test_deep_nesting_of_a_function_does_not_crash_the_process(tmp_path: Path) -> None:
    error = refused(tmp_path, {"kind": "function", "function": f"{__name__}:yield_deep_row"})
    assert error.where == f"{__name__}:yield_deep_row row 1"


NOT_UTF8 = pa.Array.from_buffers(pa.string(), 2, pa.array([b"fine", b"\xff\xfe"], pa.binary()).buffers())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([0, 2**60], pa.timestamp("us")), "timestamp[us] cannot be read: OverflowError"),
        (pa.array([0, 2**30], pa.date32()), "date32[day] cannot be read"),
        (pa.array([0, 10**15], pa.time64("us")), "time64[us] cannot be read: ValueError: hour must be in 0..23"),
        (pa.array([1000, 1], pa.time64("ns")), "time64[ns] cannot be read: ArrowInvalid: Casting from time64[ns]"),
        (NOT_UTF8, "string cannot be read: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
        (pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), NOT_UTF8), "list<element: string> cannot be read"),
    ],
    ids=["time out of range", "date out of range", "hour out of range", "nanoseconds", "not UTF-8", "nested not UTF-8"],
)
def test_parquet_value_that_python_lacks_is_refused(tmp_path: Path, column: pa.Array, message: str) -> None:
    error = refused(tmp_path, write_column(tmp_path, column))
    assert error.where == "a.parquet row 1"
    assert f"column `x`: a value of type {message}" in error.what


@pytest.mark.parametrize("zone", ["Nowhere/City", "+25:99"])
def test_unknown_time_zone_is_refused(tmp_path: Path, zone: str) -> None:
    error = refused(tmp_path, write_column(tmp_path, pa.array([1, 2], pa.timestamp("us", zone))))
    assert error.where == "a.parquet row 0"
    assert "UnknownTimeZoneError" in error.what


@pytest.mark.parametrize(
    ("column", "stored"),
    [
        (pa.array(["a"] * 60, pa.string_view()), pa.string()),
        (pa.array([b"a"] * 60, pa.binary_view()), pa.binary()),
        (pa.array([["a"]] * 60).cast(pa.list_(pa.string_view())), pa.list_(pa.field("element", pa.string()))),
        (pa.array([{"b": "a"}] * 60, pa.struct([("b", pa.string_view())])), pa.json_()),
        (pa.array([1000] * 60, pa.time64("ns")), pa.time64("us")),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_parquet_type_that_later_stages_lack_is_converted(
    tmp_path: Path, column: pa.Array, stored: pa.DataType
) -> None:
    run(tmp_path, write_column(tmp_path, column))
    for recipe in ("divided", "whole"):
        splits = [SplitRows(tmp_path / f"runs/{recipe}/raw" / split) for split in SPLITS]
        assert {rows.schema.field("x").type for rows in splits} == {stored}
        assert all([row["x"] for row in rows.rows()] == column[: len(rows)].to_pylist() for rows in splits)


def test_file_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.jsonl")).write_text('{"text": "a"}')
    error = refused(tmp_path, {"kind": "files", "train": "*.jsonl"})
    assert r"the file name 'a\udcff.jsonl' is not UTF-8" in error.what


def test_options_that_a_database_driver_refuses_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"data.source.url: the driver refuses the options in the URL"):
        run(tmp_path, {"kind": "sql", "url": "sqlite:///:memory:?timeout=soon", "query": "select 1"})

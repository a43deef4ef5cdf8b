"""The sample of a source, and what its columns hold."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from params import DataError
from params.sections.data import RowsFromFiles, RowsFromSql
from tasks.scaffold import look as look_module
from tasks.scaffold.look import SampledColumn, read_source_sample


def column(values: list[Any], name: str = "x") -> SampledColumn:
    return SampledColumn(name, values)


KINDS = {
    "text": ["a b", "", None, "c"],
    "integer": [1, 2, None],
    "number": [1, 2.5],
    "boolean": [True, False, None],
    "messages": [[{"role": "user", "content": "a"}], []],
    "spans": [[{"label": "a", "start": 0, "end": 1, "more": 2}], []],
    "list": [["a"], []],
    "record": [{"a": 1}],
    "other": ["a", 1],
    "empty": [None, " "],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_a_column(kind: str) -> None:
    assert column(KINDS[kind]).kind == kind


def test_distinct_values() -> None:
    assert column(["a", "b", "a", "", " ", None]).distinct == 2


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("id", list(range(100)), True),
        ("number", list(range(100)), True),
        ("row_id", [f"q-{i}" for i in range(100)], True),
        ("label", [i % 5 for i in range(100)], False),
        ("text", [f"a text of words {i}" for i in range(100)], False),
        ("customer_id", [i % 5 for i in range(100)], False),
    ],
)
def test_ids_are_told_apart(name: str, values: list[Any], expected: bool) -> None:
    assert column(values, name).is_id == expected


def test_the_sample_has_rows_from_all_parts_of_a_sorted_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_module, "SAMPLE_ROWS", 5 * 512)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([f"text {i}", f"label {i // 2000}"] for i in range(20_000))
    sample = read_source_sample(RowsFromFiles(kind="files", train="rows.csv"), tmp_path)
    assert len(sample.rows["train"]) == 5 * 512
    assert sample.totals == {"train": 20_000}
    assert not sample.is_whole
    labels = Counter(row["label"] for row in sample.rows["train"])
    assert len(labels) >= 5
    monkeypatch.setattr(look_module, "_SCANNED_BYTES", 10)
    sample = read_source_sample(RowsFromFiles(kind="files", train="rows.csv"), tmp_path)
    assert sample.totals == {"train": None}
    assert {row["label"] for row in sample.rows["train"]} == {"label 0", "label 1"}


def test_parquet_and_text_and_a_database_give_rows(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a", "b"], "n": [1, 2]}).to_parquet(tmp_path / "rows.parquet")
    sample = read_source_sample(RowsFromFiles(kind="files", train="rows.parquet"), tmp_path)
    assert [dict(row) for row in sample.rows["train"]] == [{"text": "a", "n": 1}, {"text": "b", "n": 2}]
    (tmp_path / "rows.txt").write_text("a\nb\n")
    sample = read_source_sample(RowsFromFiles(kind="files", train="rows.txt", text_unit="line"), tmp_path)
    assert [row["text"] for row in sample.rows["train"]] == ["a", "b"]
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("CREATE TABLE t (text, label)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [("a", 1), ("b", 2), ("c", 3)])
    sample = read_source_sample(
        RowsFromSql(kind="sql", url="sqlite:///rows.db", query="SELECT * FROM t ORDER BY label"), tmp_path
    )
    assert [row["text"] for row in sample.rows["train"]] == ["a", "b", "c"]
    assert sample.totals == {"train": 3}


def test_a_source_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n")
    with pytest.raises(DataError, match="there are none"):
        read_source_sample(RowsFromFiles(kind="files", train="rows.csv"), tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "a"}) + "\n[1]\n")
    with pytest.raises(DataError, match=r"rows.jsonl:2: is an array"):
        read_source_sample(RowsFromFiles(kind="files", train="rows.jsonl"), tmp_path)

"""Rows whose time nobody knows are set aside; with a split by time, what newer rows bring is no mistake of the older ones."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from params import DataError, Recipe
from params.foundation.artifacts import Artifacts
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import SplitRows
from tasks.validation.report import ValidationReport
from tasks.validation.stage import validate
from tests.support import tiny

UNIQUE = {"expectations": [{"type": "expect_column_values_to_be_unique", "column": "text"}]}


def at(day: int) -> str:
    return (dt.date(2026, 1, 1) + dt.timedelta(days=day)).isoformat()


def run(
    root: Path, rows: list[dict[str, Any]], validation: dict[str, Any] | None = None, **data: Any
) -> ValidationReport:
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {
        "source": {"kind": "files", "train": "rows.jsonl"},
        "time_column": "at",
        "split": {"by": "time", "test": "3d", "validation": "3d"},
    }
    recipe = Recipe.model_validate(
        tiny.recipe(**tiny.CLASSES) | {"data": content | data, "validation": validation or {}}
    )
    artifacts = Artifacts("r", root)
    ingest(artifacts, data=recipe.data, seed=1, launch=recipe.launch)
    return validate(
        artifacts,
        seed=1,
        validation=recipe.validation,
        objective=recipe.objective,
        repo_id="a/b",
        endpoint="local",
        launch=recipe.launch,
    )


def rows(days: int = 30) -> list[dict[str, Any]]:
    return [
        {"text": f"text {day}", "label": "ab"[day % 2], "at": at(day), "who": f"customer {day}"} for day in range(days)
    ]


def train(root: Path) -> list[str]:
    return [row["text"] for row in SplitRows(root / "runs/r/validated/rows/train").rows()]


def test_rows_without_a_known_time_are_set_aside_with_the_reason(tmp_path: Path) -> None:
    bad = [{"text": f"bad {i}", "label": "a", "at": time} for i, time in enumerate((None, "soon", "2999-01-01"))]
    report = run(tmp_path, [*rows(), *bad], {"max_quarantined": 0.2})
    assert report.quarantined == 3
    found = pq.read_table(tmp_path / "runs/r/validated/quarantine.parquet").to_pylist()
    assert [(row["text"], row["reasons"]) for row in found] == [
        ("bad 0", ["time_is_known(column='at'): `at` is missing"]),
        ("bad 1", ["time_is_known(column='at'): 'soon' is no time such as 2026-01-31T12:00:00Z, nor Unix seconds or milliseconds"]),
        ("bad 2", ["time_is_known(column='at'): '2999-01-01' is in the future: the newest time that is not is 2026-01-30T00:00:00+00:00"]),
    ]  # fmt: skip
    assert len(train(tmp_path)) == 24


def test_bad_times_count_as_bad_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 of 31 rows .*would be set aside"):
        run(tmp_path, [*rows(), {"text": "bad", "label": "a", "at": ""}])


def test_what_newer_rows_repeat_leaves_train_and_is_not_bad(tmp_path: Path) -> None:
    own = rows()
    own[3]["text"] = own[29]["text"]
    own[4]["who"] = own[28]["who"]
    for checks in ({}, UNIQUE):
        report = run(tmp_path, own, checks, group_by=["who"])
        assert (report.quarantined, report.share) == (2, 0.0)
    assert {"text 29", "text 4"}.isdisjoint(train(tmp_path))
    own[5]["text"] = own[6]["text"]  # within train, it is a mistake
    with pytest.raises(DataError, match="would be set aside"):
        run(tmp_path, own, UNIQUE, group_by=["who"])


def test_a_row_of_two_sources_leaves_train_if_one_holds_it_out(tmp_path: Path) -> None:
    experts = [{"text": f"text {i}", "label": "ab"[i % 2], "by": "expert"} for i in range(0, 30, 3)]
    experts[0]["label"] = "b"
    (tmp_path / "experts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in experts))
    sources = {
        "base": {"kind": "files", "train": "rows.jsonl", "splits": ["train", "validation"]},
        "experts": {"kind": "files", "train": "experts.jsonl", "splits": ["test"]},
    }
    shares = {"source": None, "sources": sources, "time_column": None, "split": {"validation": 0.2, "test": 0.2}}
    report = run(tmp_path, rows(), **shares)
    assert (report.quarantined, report.share) == (9, 0.0)
    left = train(tmp_path) + [r["text"] for r in SplitRows(tmp_path / "runs/r/validated/rows/validation").rows()]
    assert {*left} == {f"text {i}" for i in range(30) if i % 3 or not i}, "what has another label is another row"


def test_a_new_label_waits_until_it_is_old_enough(tmp_path: Path) -> None:
    own = rows()
    for row in own[-2:]:
        row["label"] = "new"
    own += [{"text": f"more {i}", "label": "new", "at": at(29), "who": f"c{i}"} for i in range(30)]
    own += [{"text": f"known {i}", "label": "a", "at": at(29), "who": f"d{i}"} for i in range(3)]
    report = run(tmp_path, own)
    assert report.rows_out["test"] == 4
    assert report.share == 0.0

"""The groups of rows: which rows belong together, by what ingest has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from params.foundation.artifacts import Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.evaluation.scoring import RowGroups
from tasks.ingestion.split_assigner import assign_split
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import SplitRows, group_values_of_row


def written(tmp_path: Path, values: list[Any], *, group_by: list[str]) -> SplitRows:
    """Test rows with these values in the column `customer`, as ingest writes them."""
    tmp_path.mkdir(exist_ok=True)
    for name, rows in {"train": values[:1], "validation": values[:1], "test": values}.items():
        lines = (json.dumps({"text": f"text {i}", "customer": value}) for i, value in enumerate(rows))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    source = {"kind": "files", **{name: f"{name}.jsonl" for name in ("train", "validation", "test")}}
    data = Data.model_validate({"source": source, "group_by": group_by})
    artifacts = Artifacts("r", tmp_path)
    ingest(artifacts, data=data, seed=1, launch=Launch(micro_batch_size=1))
    return SplitRows(artifacts.raw / "test")


def test_rows_of_equal_values_are_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", 2)
    rows = written(tmp_path, [{"id": 7}, None, {"id": 8}, {"id": 7}, None, {"id": None}], group_by=["customer"])
    ids = np.array(rows.table()["row_id"])
    found = RowGroups.read(rows)
    assert found is not None
    assert found.of(ids).tolist() == [0, 1, 2, 0, 3, 4], "a row without a group is an observation of its own"
    assert found.of(ids[[0, 3, 4]]).tolist() == [0, 0, 3]
    others = found.of(ids[[2, 4]])  # models with other tokenizers have scores of other rows
    assert others.tolist() == [2, 3], "a group has one number, whichever rows are asked for"


@pytest.mark.parametrize("part", [pytest.param(2, marks=pytest.mark.slow), 100])
def test_a_value_of_several_types_is_one_group_in_the_split_and_in_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", part)
    values = [7, "7", "7.0", 8, "7.50", 7.5, "a", "7.05", [7], "[7]"]
    rows = written(tmp_path, values, group_by=["customer"])
    found = RowGroups.read(rows)
    assert found is not None
    assert found.numbers.tolist() == [0, 0, 0, 1, 2, 2, 3, 4, 5, 5]
    for moved in (rows, rows.reading({"customer": "string"})):
        groups = [group_values_of_row(row, rows.group_by) for row in moved.rows()]
        assert [assign_split(group, {"test": 0.5}, 1) for group in groups if group] == [
            assign_split({"customer": text}, {"test": 0.5}, 1)
            for text in ("7", "7", "7", "8", "7.5", "7.5", "a", "7.05", "[7]", "[7]")
        ]
    texts = written(tmp_path / "texts", ["7", "7.0", "a", "a"], group_by=["customer"])
    assert texts.group_by == {"customer": False}
    only = RowGroups.read(texts)
    assert only is not None
    assert only.numbers.tolist() == [0, 1, 2, 2], "texts that all are written by somebody stay what they are"


@pytest.mark.parametrize(
    ("values", "group_by"),
    [(["a", "a"], []), (["a", "b"], ["customer"]), ([None, "a", None, ""], ["customer"])],
    ids=["no columns", "each on its own", "no values"],
)
def test_rows_without_groups_are_independent(tmp_path: Path, values: list[str], group_by: list[str]) -> None:
    assert RowGroups.read(written(tmp_path, values, group_by=group_by)) is None

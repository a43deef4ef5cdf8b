"""data.split.stratify: each label has a training row; all other rows keep the split that their hash gives them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from params import DataError, RecipeError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.diagnostics.check import find_recipe_problems
from tasks.ingestion import parts
from tasks.ingestion.stage import ingest
from tasks.recipes.loading import read_yaml_document
from tasks.shards.split_rows import SplitRows
from tests.support import tiny
from tests.support.settings_check import check_settings_in_this_process
from trainer.data.shards import Manifest

SHARES = {"validation": 0.3, "test": 0.4}  # so that many labels with few rows are held out as a whole


def rows_of(labels: int, most: int, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    rows = [{"text": f"{i} {j}", "label": f"l{i}"} for i in range(labels) for j in range(chance.randint(1, most))]
    chance.shuffle(rows)
    return rows


def split(
    root: Path, rows: list[dict[str, Any]], *, by: str | None = "label", code: str = "", suffix: str = "jsonl"
) -> dict[str, str]:
    """Ingest rows, and return the split of each text; every row is in one split, in the order of the source."""
    path = root / f"train.{suffix}"
    if suffix == "csv":
        path.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "files", "train": path.name}
    data = Data.model_validate({"source": source, "split": SHARES | ({"stratify": by} if by else {})})
    artifacts = Artifacts("r", root)
    inputs = tiny.inputs("ingest", artifacts, code) if code else None
    ingest(artifacts, data=data, seed=17, launch=Launch(micro_batch_size=1, data_workers=1), inputs=inputs)
    found = {}
    for name in SPLITS:
        read = list(SplitRows(artifacts.raw / name).rows())
        assert [row["row_id"] for row in read] == sorted(row["row_id"] for row in read)
        assert all(rows[row["row_id"]]["text"] == row["text"] for row in read)
        assert not Manifest.read(artifacts.raw / name).rows - len(read)
        found |= {row["row_id"]: (row["text"], name) for row in read}
    assert sorted(found) == list(range(len(rows)))
    return dict(found.values())


def learned(rows: list[dict[str, Any]], splits: dict[str, str]) -> set[str]:
    return {str(row["label"]).strip() for row in rows if splits[row["text"]] == "train"}


@pytest.mark.parametrize(
    ("seed", "part"),
    [
        pytest.param(seed, part, marks=pytest.mark.slow if seed and part == 2 else ())  # twenty parts take a second
        for part in (65_536, 16, 2)
        for seed in range(3)
    ],
)
def test_each_label_has_a_training_row_and_all_others_stay(tmp_path: Path, monkeypatch, seed: int, part: int) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", part)
    rows = rows_of(40, 4, seed)
    hashed, splits = split(tmp_path, rows, by=None), split(tmp_path, rows)
    lost = {row["label"] for row in rows} - learned(rows, hashed)
    assert len(lost) > 5, "the hash loses no labels here, so that this test says nothing"
    assert learned(rows, splits) == {row["label"] for row in rows}
    moved = [row for row in rows if splits[row["text"]] != hashed[row["text"]]]
    assert sorted(row["label"] for row in moved) == sorted(lost), "one row of each lost label"
    assert all(splits[row["text"]] == "train" for row in moved)


def test_it_says_how_many_values_moved_only_if_some_did(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO")
    split(tmp_path, [{"text": f"{i}", "label": "a"} for i in range(40)])
    assert "where a hash had put none" not in caplog.text
    split(tmp_path, rows_of(40, 4, 0))
    assert "where a hash had put none" in caplog.text


def test_parts_processes_and_kept_work_change_nothing(tmp_path: Path, monkeypatch) -> None:
    rows = rows_of(40, 4)
    whole = split(tmp_path, rows)
    monkeypatch.setattr(parts, "PART_ROWS", 8)
    first = split(tmp_path, rows, code="1")
    assert first == whole
    places = {path: path.read_bytes() for path in (tmp_path / "runs/r/raw").rglob("*.parquet")}
    assert split(tmp_path, rows, code="1") == whole, "the kept shards are those of the hash"
    assert {path: path.read_bytes() for path in places} == places
    without = split(tmp_path, rows, by=None, code="1")
    assert learned(rows, without) < learned(rows, whole)


def test_rows_that_are_added_move_only_the_last_row_of_a_rare_label(tmp_path: Path) -> None:
    rows = rows_of(40, 3)
    before = split(tmp_path, rows)
    hashed = split(tmp_path, rows, by=None)
    more = [*rows, *({"text": f"new {i}", "label": f"l{i % 50}"} for i in range(100))]
    after = split(tmp_path, more)
    moved = {text for text in before if after[text] != before[text]}
    assert moved, "no label got a later row, so that this test says nothing"
    assert all((before[text], after[text]) == ("train", hashed[text]) for text in moved)
    assert learned(more, after) == {row["label"] for row in more}


def test_labels_are_those_that_are_learned(tmp_path: Path) -> None:
    """White space at the ends is no part of one; numbers are as they are written; a null is none."""
    rows: list[dict[str, Any]] = [{"text": f"a{i}", "label": " a" if i % 2 else "a"} for i in range(60)]
    rows += [{"text": f"n{i}", "label": None} for i in range(3)]
    splits = split(tmp_path, rows)
    assert splits == split(tmp_path, rows, by=None)
    rows = [{"text": f"b{i}", "label": "2.5"} for i in range(60)]
    rows += [{"text": f"c{i}{zero}", "label": f"3.{i}{zero}"} for i in range(1, 10) for zero in ("", "0")]
    numbers = split(tmp_path, rows, suffix="csv")
    assert {name for text, name in numbers.items() if text[0] == "c"} == {"train"}, "3.1 and 3.10 are two labels"


def test_lists_groups_and_unknown_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"data\.split\.stratify: `label` holds lists or records"):
        split(tmp_path, [{"text": "a", "label": ["x"]}])
    with pytest.raises(
        RecipeError, match=r"data\.split\.stratify: the rows have no column `labl`\n  fix: did you mean `label`"
    ):
        split(tmp_path, [{"text": "a", "label": "x"}], by="labl")
    with pytest.raises(ValueError, match=r"rows of one group .* must stay in one split"):
        Data.model_validate(
            {"source": {"kind": "files", "train": "a.csv"}, "split": {"stratify": "label"}, "group_by": ["text"]}
        )


def test_a_column_without_repeated_values_leaves_nothing_to_hold_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`text` \(data.split.stratify\) may have too many values"):
        split(tmp_path, rows_of(20, 1), by="text")


def test_check_finds_a_missing_column(tmp_path: Path, monkeypatch) -> None:
    check_settings_in_this_process(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/rows.csv").write_text("text,label\na,b\n")
    path = tiny.write(tmp_path / "params/tiny.yaml", tiny.recipe({"data.split": {"stratify": "labl"}}))
    found = {
        ".".join(map(str, problem.key)): problem.what for problem in find_recipe_problems(read_yaml_document(path))
    }
    assert found["data.split.stratify"] == "the source has no column `labl`"

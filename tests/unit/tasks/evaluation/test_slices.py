"""Slices of a split by column and by function, and their errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from params import DataError, RecipeError
from params.sections.evaluation import SliceBy
from tasks.evaluation.analysis import find_slice_positions, read_shortened_texts
from tasks.shards.split_rows import SplitRows
from tests.support import tiny

OWN_CODE = """
def length(row):
    return "long" if len(row["text"]) > 5 else "short"

def fails(row):
    return 1 // (row["row_id"] - 7)
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: Any) -> Iterator[SplitRows]:
    values = {
        2: {"text": "a", "language": "en", "stars": 5},
        3: {"text": "a long text", "language": "de", "stars": 1},
        5: {"text": "b", "language": "en", "stars": 1},
        7: {"text": "another one", "language": None, "stars": 5},
        11: {"text": "c", "language": "en", "stars": 3},
    }
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 4)  # several shards
    table = pa.Table.from_pylist([values.get(i, values[2]) for i in range(12)])
    tiny.write_splits(tmp_path / "raw", {"test": dict(zip(table.column_names, table.columns, strict=True))})
    tiny.write_some(SplitRows(tmp_path / "raw/test"), tmp_path / "test", [i in values for i in range(12)])
    (tmp_path / "own_slices.py").write_text(OWN_CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield SplitRows(tmp_path / "test")
    sys.modules.pop("own_slices", None)


def sliced(
    rows: SplitRows, *slices: SliceBy, row_ids: tuple[int, ...] = (2, 3, 5, 7, 11)
) -> dict[str, dict[str, list[int]]]:
    found = find_slice_positions(rows, slices, np.array(row_ids))
    return {name: {one: positions.tolist() for one, positions in slices.items()} for name, slices in found}


def test_column_values_are_slices_largest_first(rows: SplitRows) -> None:
    found = sliced(rows, SliceBy(column="language"), SliceBy(column="stars", name="rating"))
    assert found == {
        "language": {"en": [0, 2, 4], "None": [3], "de": [1]},
        "rating": {"1": [1, 2], "5": [0, 3], "3": [4]},
    }
    assert list(found["language"]) == ["en", "None", "de"]
    assert list(found["rating"]) == ["1", "5", "3"]


def test_function_names_the_slice_of_a_row(rows: SplitRows) -> None:
    by_length = SliceBy(name="length", function="own_slices:length")
    assert sliced(rows, by_length) == {"length": {"short": [0, 2, 4], "long": [1, 3]}}


def test_unscored_rows_are_in_no_slice(rows: SplitRows) -> None:
    assert sliced(rows, SliceBy(column="language"), row_ids=(3, 5, 11)) == {"language": {"en": [1, 2], "de": [0]}}
    assert sliced(rows, SliceBy(column="language"), row_ids=(3, 12)) == {"language": {"de": [0]}}


def test_missing_column_error_lists_the_columns(rows: SplitRows) -> None:
    with pytest.raises(RecipeError) as caught:
        sliced(rows, SliceBy(column="stars"), SliceBy(column="country"))
    assert caught.value.where == "evaluation.slices.1"
    assert caught.value.what == "the rows have no column `country`"
    assert caught.value.fix == "use one of row_id, text, language, stars"


def test_column_with_too_many_values_is_refused(rows: SplitRows, monkeypatch: Any) -> None:
    monkeypatch.setattr("tasks.evaluation.analysis._MAX_SLICES", 4)
    assert len(sliced(rows, SliceBy(column="language"))["language"]) == 3
    with pytest.raises(RecipeError, match="text gives 5 slices, more than the limit of 4"):
        sliced(rows, SliceBy(column="text"))


def test_failing_slice_function_is_an_error_with_the_row(rows: SplitRows) -> None:
    with pytest.raises(RecipeError) as caught:
        sliced(rows, SliceBy(name="failing", function="own_slices:fails"))
    assert caught.value.where == "evaluation.slices.0.function"
    assert "raised ZeroDivisionError for row_id 7" in caught.value.what


def test_read_texts_of_chosen_rows(rows: SplitRows) -> None:
    assert read_shortened_texts(rows, [11, 3], lambda row: row["text"].upper()) == ["C", "A LONG TEXT"]
    with pytest.raises(DataError, match="has no row with row_id 4"):
        read_shortened_texts(rows, [3, 4, 6], lambda row: row["text"])

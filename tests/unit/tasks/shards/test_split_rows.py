"""Rows of a split, read by id."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from params import DataError
from tasks.shards.split_rows import SplitRows
from tests.support import tiny


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SplitRows:
    """Rows 0 to 9 without 4 to 7: the shards that begin with row 0 and 8, and one between them that is not there."""
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 4)
    numbers = list(range(10))
    tiny.write_splits(tmp_path / "raw", {"train": {"text": [f"text {i}" for i in numbers], "number": numbers}})
    tiny.write_some(SplitRows(tmp_path / "raw/train"), tmp_path / "train", [not 4 <= i < 8 for i in numbers])
    return SplitRows(tmp_path / "train")


def test_rows_are_picked_by_id(rows: SplitRows) -> None:
    assert list(rows.pick([9, 2, 0, 2])) == [{"row_id": i, "text": f"text {i}", "number": i} for i in (0, 2, 9)]
    assert list(rows.pick([8], ["number"])) == [{"row_id": 8, "number": 8}]
    assert list(rows.pick([-1, 4, 7, 10])) == list(rows.pick([])) == []


def test_only_shards_that_can_hold_a_row_are_read(rows: SplitRows) -> None:
    rows.manifest.path(rows.manifest.shards[0]).unlink()
    assert [row["row_id"] for row in rows.pick([8, 9])] == [8, 9]
    with pytest.raises(DataError, match="does not exist"):
        list(rows.pick([3, 8]))


def test_shard_that_changes_after_a_read_is_noticed_whatever_its_size_and_times(rows: SplitRows) -> None:
    """A reader that has begun goes on with the bytes that it has checked."""
    whole = rows.table().to_pylist()
    shard = rows.manifest.path(rows.manifest.shards[0])
    before, about = shard.read_bytes(), shard.stat()
    reader = rows.batches(batch_rows=1)
    first = next(reader)
    with shard.open("r+b") as file:
        file.write(bytes([*before[:9], before[9] ^ 1]))
    os.utime(shard, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert shard.stat().st_size == about.st_size
    assert shard.read_bytes() != before
    assert [row for batch in (first, *reader) for row in batch.to_pylist()] == whole
    with pytest.raises(DataError, match=f"{shard.name}: is not the file that its manifest describes"):
        rows.table()
    shard.write_bytes(before)
    assert rows.table().to_pylist() == whole

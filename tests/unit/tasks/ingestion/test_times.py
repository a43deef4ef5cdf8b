"""Splits by time: which rows are held out, what a moved cut makes again, and times that nobody can place."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from params import DataError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.ingestion.report import IngestReport
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import JSON, SplitRows, store_as_json
from tasks.shards.times import NO_TIME, read_times
from tests.support import tiny

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def at(hours: float) -> str:
    return (START + dt.timedelta(hours=hours)).isoformat()


def run(root: Path, times: list[Any], **data: Any) -> IngestReport:
    rows = [{"text": f"row {i}", "at": own} for i, own in enumerate(times)]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {"source": {"kind": "files", "train": "rows.jsonl"}, "time_column": "at"}
    made = Data.model_validate(content | {"split": {"by": "time", "test": "2d", "validation": "1d"}} | data)
    inputs = tiny.inputs("ingest", Artifacts("x", root), "")
    return ingest(
        Artifacts("x", root), data=made, seed=17, launch=Launch(micro_batch_size=1, data_workers=1), inputs=inputs
    )


def texts(root: Path) -> dict[str, list[str]]:
    return {split: [row["text"] for row in SplitRows(root / "runs/x/raw" / split).rows()] for split in SPLITS}


def files(root: Path) -> dict[str, bytes]:
    raw = root / "runs/x/raw"
    return {str(path.relative_to(raw)): path.read_bytes() for path in raw.rglob("*.parquet")}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", 8)
    monkeypatch.setattr("tasks.ingestion.formats.json_files.PLACE_ROWS", 8)


def test_the_newest_rows_are_held_out_whatever_their_order(tmp_path: Path) -> None:
    hours = [(i * 37) % 200 for i in range(200)]
    report = run(tmp_path, [at(hour) for hour in hours])
    newest = max(hours)
    wanted: dict[str, list[str]] = {split: [] for split in SPLITS}
    for i, hour in enumerate(hours):
        split = "test" if hour > newest - 48 else "validation" if hour > newest - 72 else "train"
        wanted[split].append(f"row {i}")
    assert texts(tmp_path) == wanted
    assert report.learned_until == at(newest - 48)


def test_times_of_several_zones_and_forms_compare_right(tmp_path: Path) -> None:
    newest = START + dt.timedelta(days=20)
    late = [newest - dt.timedelta(hours=47), newest - dt.timedelta(hours=49), newest - dt.timedelta(hours=73)]
    forms = [
        lambda one: one.astimezone(dt.timezone(dt.timedelta(hours=-9))).isoformat(),
        lambda one: one.replace(tzinfo=None).isoformat(" "),
        lambda one: int(one.timestamp()),
        lambda one: int(one.timestamp() * 1000),
    ]
    run(tmp_path, [newest.isoformat(), *(form(one) for form in forms for one in late)])
    assert texts(tmp_path) == {
        "test": ["row 0", "row 1", "row 4", "row 7", "row 10"],
        "validation": ["row 2", "row 5", "row 8", "row 11"],
        "train": ["row 3", "row 6", "row 9", "row 12"],
    }


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([START, None], pa.timestamp("ns", "Europe/Berlin")), [1767225600, None]),
        (pa.array([START.replace(tzinfo=None)], pa.timestamp("s")), [1767225600]),
        (pa.array([dt.date(2026, 1, 1)]), [1767225600]),
        (pa.array([1767225600, 1767225600_000, 20260101, 17672256000]), [1767225600, 1767225600, None, None]),
        (pa.array([1767225600.5]), [1767225600.5]),
        (pa.array(["2026-01-01", " 2026-01-01T01:00:00+01:00 ", "1767225600", "01/02/2026", ""]), [1767225600] * 3 + [None] * 2),
        (store_as_json(["2026-01-01T00:00:00Z", 1767225600, True]), [1767225600, 1767225600, None]),
    ],
)  # fmt: skip
def test_times_are_read(column: pa.Array, wanted: list[float | None]) -> None:
    assert read_times(column).tolist() == [NO_TIME if one is None else round(one * 1e6) for one in wanted]
    assert column.type.equals(JSON) or read_times(pa.chunked_array([column])).dtype == np.int64


def test_a_source_that_feeds_only_held_out_splits_gives_no_older_rows(tmp_path: Path) -> None:
    """A held-out row must not be older than one that is learned from."""
    own = [{"text": f"own {hour}", "at": at(hour)} for hour in range(0, 200, 4)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    sources = {
        "base": {"kind": "files", "train": "rows.jsonl"},
        "own": {"kind": "files", "train": "own.jsonl", "splits": ["validation", "test"]},
    }
    report = run(tmp_path, [at(hour) for hour in range(200)], source=None, sources=sources)
    assert report.sources["own"] == {"train": 0, "validation": 6, "test": 12}
    assert report.left_out == {"of a split that the source may not feed": 32}


def test_rows_that_leave_nothing_to_learn_from_say_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train: no row is of its time"):
        run(tmp_path, [at(0)] * 9)


def test_lines_without_a_time_are_rows_without_one(tmp_path: Path) -> None:
    """Parts of a file of JSON lines may lack a column."""
    rows = [{"text": f"row {i}"} | ({"at": at(i)} if i < 200 else {}) for i in range(220)]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(tmp_path, [], source={"kind": "files", "train": "some.jsonl"})
    assert {f"row {i}" for i in range(200, 220)} <= {*texts(tmp_path)["train"]}


def test_rows_without_a_time_are_kept_for_validation_and_move_no_cut(tmp_path: Path) -> None:
    future = dt.datetime.fromtimestamp(time.time() + 3 * 86_400, dt.UTC).isoformat()
    report = run(tmp_path, [*map(at, range(0, 240, 4)), None, "soon", future])
    assert report.learned_until == at(236 - 48)
    assert {"row 60", "row 61", "row 62"} <= {*texts(tmp_path)["train"]}
    times = SplitRows(tmp_path / "runs/x/raw/test").times
    assert times == {"column": "at", "newest": int((START.timestamp() + 236 * 3600) * 1e6), "split": "time"}


def test_a_window_leaves_out_older_rows_and_keeps_the_places_of_others(tmp_path: Path) -> None:
    run(tmp_path, [at(hour) for hour in range(200)])
    ids = {row["text"]: row["row_id"] for split in SPLITS for row in SplitRows(tmp_path / "runs/x/raw" / split).rows()}
    report = run(tmp_path, [at(hour) for hour in range(200)], window="5d")
    assert report.left_out == {"older than data.window or data.since": 80}
    found = {
        row["text"]: row["row_id"] for split in SPLITS for row in SplitRows(tmp_path / "runs/x/raw" / split).rows()
    }
    assert found == {f"row {hour}": ids[f"row {hour}"] for hour in range(80, 200)}
    report = run(tmp_path, [at(hour) for hour in range(200)], since="2026-01-02T00:00:00", split={})
    assert sum(report.left_out.values()) == 24


def test_a_moved_cut_makes_only_the_shards_again_that_have_a_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, [at(hour) for hour in range(400)], window="14d")
    before = files(tmp_path)
    caplog.set_level("INFO")
    run(tmp_path, [at(hour) for hour in range(424)], window="14d")
    after = files(tmp_path)
    # 24 hours are 3 parts; the three cuts lie in at most one part each, before and after
    moved = {name for name in after if before.get(name) != after[name]}
    contents = {*before.values()}
    assert len({name for name in moved if after[name] not in contents}) <= 3 + 6
    assert "50 of 53 parts of train are those of an earlier run" in caplog.text


def test_no_time_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.time_column: no row has a time in `at`"):
        run(tmp_path, ["yesterday", None])


def test_empty_span_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"validation: no row is of its time .*data.split.validation is 1d"):
        run(tmp_path, [at(0), at(1), at(100)])

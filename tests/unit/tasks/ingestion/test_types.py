"""Columns of several types, wherever these meet: every value stays what it was, as a number, as text or as it is written."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import DataError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.ingestion import parts
from tasks.ingestion.batches import SourceBatch, to_readable_batch
from tasks.ingestion.formats import read_rows_of_file
from tasks.ingestion.split_assigner import assign_split
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import SplitRows, as_text

SHARES = {"test": 0.3, "validation": 0.3}
VALUES: dict[str, Any] = {
    "integer": 7,
    "large": 2**53 + 1,
    "huge": 10**30,
    "decimals": 12.5,
    "text": "007",
    "truth": True,
    "list": [1, "a"],
    "record": {"k": None, "a": {}},
}
PAIRS = list(itertools.permutations(VALUES, 2))


def run(root: Path, **source: Any) -> dict[str, SplitRows]:
    source = {"kind": "files", "train": "train.jsonl"} | source
    data = Data.model_validate({"source": source, "split": SHARES})
    ingest(Artifacts("r", root), data=data, seed=1, launch=Launch(micro_batch_size=1))
    return {split: SplitRows(root / "runs/r/raw" / split) for split in SPLITS}


def rows_of(splits: dict[str, SplitRows]) -> list[dict[str, Any]]:
    found = [row for rows in splits.values() for row in rows.rows()]
    return sorted(found, key=lambda row: row["row_id"])


def expected(name: str, other: str) -> Any:
    """What becomes of a value that shares its column with another."""
    value, both = VALUES[name], {name, other}
    if both & {"list", "record"} or both <= {"integer", "large"}:
        return value
    return float(value) if both == {"integer", "decimals"} else as_text(value)


@pytest.mark.parametrize("place", ["row", "batch", "part", "file", "split"])
def test_no_value_is_lost_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr("tasks.ingestion.batches.BATCH_ROWS", 2 if place == "batch" else 512)
    monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", 8 if place == "part" else 4096)
    rows = [{f"{pair}": VALUES[pair[i // 8]] for pair in PAIRS} | {"text": f"text {i}"} for i in range(16)]
    order = rows[::2] + rows[1::2] if place == "row" else rows
    halves = [order] if place in ("row", "batch", "part") else [order[:8], order[8:]]
    for name, half in zip(("train", "train-2"), halves, strict=False):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in half))
    source = {"file": {"train": "train*.jsonl"}, "split": {"test": "train-2.jsonl", "validation": "train-2.jsonl"}}
    found = {row["text"]: row for row in rows_of(run(tmp_path, **source.get(place, {})))}
    for pair, i in itertools.product(PAIRS, range(16)):
        wanted = expected(pair[i // 8], pair[1 - i // 8])
        value = found[f"text {i}"][f"{pair}"]
        assert (type(value), json.dumps(value)) == (type(wanted), json.dumps(wanted)), (pair, i)


@pytest.mark.parametrize(
    ("first", "second", "texts"),
    [
        (pa.array(["a"] * 9), pa.array(["b"] * 9).dictionary_encode(), ("a", "b")),
        (pa.array([dt.date(2024, 1, 2)] * 9), pa.array([dt.datetime(2024, 1, 2, 3)] * 9), None),
        (pa.array([dt.datetime(2024, 1, 2)] * 9, pa.timestamp("us", "UTC")), pa.array([1] * 9), None),
        (pa.array([decimal.Decimal("1.50")] * 9), pa.array(["x"] * 9), ("1.50", "x")),
        (pa.array([dt.timedelta(days=1)] * 9), pa.array([1] * 9), ("1 day, 0:00:00", "1")),
        (pa.array([2**64 - 1] * 9, pa.uint64()), pa.array([-1] * 9), (str(2**64 - 1), "-1")),
        (pa.array([[1]] * 9), pa.array([["a"]] * 9), ([1], ["a"])),
        (pa.array([[1]] * 9), pa.array([{"a": 1}] * 9), ([1], {"a": 1})),
        (pa.array([0.1] * 9, pa.float32()), pa.array([2**53 + 1] * 9), (None, str(2**53 + 1))),
    ],
    ids=str,
)
def test_types_of_parquet_files_are_reconciled(tmp_path: Path, first: Any, second: Any, texts: Any) -> None:
    for name, column in (("a", first), ("b", second)):
        pq.write_table(pa.table({"text": [f"{name} {i}" for i in range(9)], "x": column}), tmp_path / f"{name}.parquet")
    found = [row["x"] for row in rows_of(run(tmp_path, train="*.parquet"))]
    for own, source, text in ((found[0], first, 0), (found[-1], second, 1)):
        wanted = texts[text] if texts else as_text(source[0].as_py())
        assert own == wanted or wanted is None, own


def test_empty_lists_are_of_any_type(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": f"text {i}", "spans": [{"a": 1}] * (i < 9), "labels": ["x"] * (i > 8)} for i in range(18)]
    for name, half in (("a", rows[:9]), ("b", rows[9:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in half))
    splits = run(tmp_path, train="*.jsonl")
    assert [(row["spans"], row["labels"]) for row in rows_of(splits)] == [(r["spans"], r["labels"]) for r in rows]
    assert splits["train"].schema.field("labels").type == pa.list_(pa.string())
    assert not caplog.text


def test_bytes_beside_text_are_refused_with_file_and_row(tmp_path: Path) -> None:
    for name, column in (("a", ["x"] * 9), ("b", [None] + [b"x"] * 8)):
        pq.write_table(pa.table({"text": [f"{name} {i}" for i in range(9)], "x": column}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"^b.parquet row 1: column `x` is binary here, and string in the rows before"):
        run(tmp_path, train="*.parquet")


CELLS = ("007", "NA", "null", "1_0", "3.1", "3.10", "12.50", "1e3", "-0", "-0.0", "0.1", "7", "", "+5", " 5", "1.")


@pytest.mark.parametrize("cells", [*itertools.combinations(CELLS, 2), *((cell,) for cell in CELLS)], ids=str)
def test_csv_cells_can_always_be_read_as_they_are_written(tmp_path: Path, cells: tuple[str, ...]) -> None:
    lines = [f"text {i},{cells[i % len(cells)]}\n" for i in range(24)]
    (tmp_path / "rows.csv").write_text("text,x\n" + "".join(lines))
    splits = run(tmp_path, train="rows.csv")
    for kind in ("string", "label"):
        found = rows_of({split: rows.reading({"x": kind}) for split, rows in splits.items()})
        assert [str(row["x"] or "") for row in found] == [cells[i % len(cells)] for i in range(24)], kind


def test_csv_files_of_a_split_may_differ_in_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,zip,price\n" + "".join(f"a {i},0000{i},{i}\n" for i in range(9)))
    (tmp_path / "b.csv").write_text("text,zip,price\n" + "".join(f"b {i},1000{i},{i}.50\n" for i in range(9)))
    splits = run(tmp_path, train="*.csv")
    assert [(row["zip"], row["price"]) for row in rows_of(splits)] == [
        *((f"0000{i}", float(i)) for i in range(9)),
        *((f"1000{i}", i + 0.5) for i in range(9)),
    ]
    as_labels = rows_of({split: rows.reading({"price": "label"}) for split, rows in splits.items()})
    assert [row["price"] for row in as_labels] == [*(f"{i}" for i in range(9)), *(f"{i}.50" for i in range(9))]
    assert [row["price"] for row in rows_of({s: rows.reading({"price": "number"}) for s, rows in splits.items()})]


@pytest.mark.parametrize("part", [65_536, pytest.param(4, marks=pytest.mark.slow)])
def test_rows_of_a_group_stay_together_whatever_the_type_of_its_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", part)
    users = [kind(i) for i in range(30) for kind in (int, str, float)]
    rows = [{"text": f"text {i}", "user": user} for i, user in enumerate(users)]
    lines = {"train-1.jsonl": rows[:50], "train-2.jsonl": [{**row, "user": str(row["user"])} for row in rows[50:]]}
    for name, own in lines.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in own))
    data = {"source": {"kind": "files", "train": "train-*.jsonl"}, "split": SHARES, "group_by": ["user"]}
    ingest(Artifacts("r", tmp_path), data=Data.model_validate(data), seed=1, launch=Launch(micro_batch_size=1))
    assert "column `user` holds " in caplog.text
    splits = {split: SplitRows(tmp_path / "runs/r/raw" / split) for split in SPLITS}
    assert sum(len(own) for own in splits.values()) == len(rows)
    places = {float(row["user"]): split for split, own in splits.items() for row in own.rows()}
    assert set(places.values()) == set(SPLITS)
    for split, own in splits.items():
        assert {places[float(row["user"])] for row in own.rows()} == {split}


@pytest.mark.parametrize("part", [65_536, 64])
def test_a_file_of_numbers_beside_one_of_texts_keeps_its_texts_and_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """`a.csv` is read as numbers, which say 2.5 for 2.50, and `b.csv` as text."""
    monkeypatch.setattr(parts, "PART_ROWS", part)
    groups = [f"{i}.{decimals}" for i in range(30) for decimals in ("50", "05", "0", "00", "125")]
    for name, last in (("a", "1.5"), ("b", "other")):
        lines = "".join(f"{name} {i},{group}\n" for i, group in enumerate([*groups, last]))
        (tmp_path / f"{name}.csv").write_text(f"text,price\n{lines}")
    data = {"source": {"kind": "files", "train": "*.csv"}, "split": SHARES, "group_by": ["price"]}
    launch = Launch(micro_batch_size=1, data_workers=1)
    ingest(Artifacts("r", tmp_path), data=Data.model_validate(data), seed=1, launch=launch)
    found: dict[str, set[str]] = {}
    for split in SPLITS:
        for row in SplitRows(tmp_path / "runs/r/raw" / split).rows():
            found.setdefault(row["price"], set()).add(split)
    assert found.keys() == {*groups, "1.5", "other"}
    assert [group for group, splits in found.items() if len(splits) > 1] == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[[("a", 1)]], []], pa.list_(pa.map_(pa.string(), pa.int64()))),
        pa.array([['{"n": null}'], []], pa.list_(pa.string())).cast(pa.list_(pa.json_())),
        pa.array([1, 2], pa.timestamp("ns", "UTC")),
        pa.array([{"a": 1, "b": None}, {"a": None, "b": "z"}]),
    ],
    ids=["map", "maps", "JSON", "time", "record"],
)
def test_a_batch_that_is_divided_keeps_its_values(column: pa.Array) -> None:
    batch = SourceBatch(pa.RecordBatch.from_arrays([column], names=["x"]), str)
    first, rest = batch.divide(1)
    assert rest
    assert [row for part in (first, rest) for row in to_readable_batch(part)[1]] == to_readable_batch(batch)[1]


def test_decimals_of_other_files_are_no_text(tmp_path: Path) -> None:
    """12.50 would be 12.5, and pandas writes integers beside nulls as 7.0."""
    rows = "".join(f'{{"text": "{i}", "x": {i}.50}}\n' for i in range(24))
    (tmp_path / "train.jsonl").write_text(rows)
    assert run(tmp_path)["train"].reading({"x": "string"}).schema.field("x").type == pa.float64()


def test_rows_keep_the_split_that_they_had_when_arrow_held_all_values(tmp_path: Path) -> None:
    united = pa.array([{"a": 1, "b": 1.0 if i % 2 else None} if i % 3 else {"a": i} for i in range(60)]).to_pylist()
    rows = [{"text": f"text {i}", "n": i, "price": i / 4, "meta": united[i], "none": None} for i in range(60)]
    written = [row | {"meta": {k: v for k, v in row["meta"].items() if v is not None}, "none": {}} for row in rows]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    (tmp_path / "train.csv").write_text("text,n,price\n" + "".join(f"text {i},{i},{i / 4:.3f}\n" for i in range(60)))
    for name, columns in (("train.jsonl", ("text", "n", "price", "meta")), ("train.csv", ("text", "n", "price"))):
        for split, found in run(tmp_path, train=name).items():
            texts = {row["text"] for row in rows if assign_split({c: row[c] for c in columns}, SHARES, 1) == split}
            assert {row["text"] for row in found.rows()} == texts


def test_names_of_classes_in_a_schema_of_datasets_are_the_labels(tmp_path: Path) -> None:
    classes, tags = {"names": ["late", "lost"], "_type": "ClassLabel"}, {"names": ["O", "B-PER"], "_type": "ClassLabel"}
    features = {
        "label": classes,
        "tags": {"feature": tags, "_type": "Sequence"},
        "old": [tags],
        "spans": {"feature": {"at": {"_type": "Value"}, "kind": classes}, "_type": "Sequence"},
        "records": [{"kind": classes}],
    }
    columns = {
        "label": [1, -1, None],
        "tags": [[0, 1], [], None],
        "old": [[1], [-1], []],
        "spans": [{"at": [5], "kind": [1]}, {"at": [], "kind": []}, None],
        "records": [[{"kind": 0}], [], None],
        "n": [1, 0, -1],
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), tmp_path / "a.parquet", row_group_size=2)
    found = {name: [row[name] for row in rows_in(tmp_path / "a.parquet")] for name in columns}
    assert found == {
        "label": ["lost", None, None],
        "tags": [["O", "B-PER"], [], None],
        "old": [["B-PER"], [None], []],
        "spans": [{"at": [5], "kind": ["lost"]}, {"at": [], "kind": []}, None],
        "records": [[{"kind": "late"}], [], None],
        "n": [1, 0, -1],
    }
    pq.write_table(pa.table({"label": [2]}).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column `label`: the class 2 has no name"):
        rows_in(tmp_path / "a.parquet")
    for odd in (b"{", b"[]", b'{"info": {"features": {"label": {"_type": "ClassLabel"}}}}'):
        pq.write_table(pa.table({"label": [2]}).replace_schema_metadata({"huggingface": odd}), tmp_path / "a.parquet")
        assert rows_in(tmp_path / "a.parquet") == [{"label": 2}]


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [row for batch in read_rows_of_file(path, path.name) for row in to_readable_batch(batch)[1]]

"""The ingest stage: stable splits, reproducible bytes, and failures that keep earlier artifacts."""

import json
import os
import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import DataError, InputsChangedError, RecipeError
from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.ingestion import parts
from tasks.ingestion.split_assigner import assign_split, canonical_json
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import SplitRows
from tests.support import forked, tiny


def run(
    root: Path,
    *,
    seed: int = 17,
    split: dict[str, Any] | None = None,
    group_by: Sequence[str] = (),
    workers: int = 1,
    code: str = "",
    **source: Any,
) -> Any:
    """Ingest; with `code`, parts are kept for the next run."""
    source = {"kind": "files", "train": "train.jsonl", **source}
    shares = {"validation": 0.1, "test": 0.1}
    data = {"source": source, "split": shares | (split or {}), "group_by": list(group_by)}
    artifacts = Artifacts("r", root)
    inputs = tiny.inputs("ingest", artifacts, code) if code else None
    launch = Launch(micro_batch_size=1, data_workers=workers)
    return ingest(artifacts, data=Data.model_validate(data), seed=seed, launch=launch, inputs=inputs)


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write(root: Path, suffix: str, rows: list[dict[str, Any]], name: str = "train") -> Path:
    path = root / f"{name}.{suffix}"
    if suffix == "jsonl":
        write_json_lines(path, rows)
    elif suffix == "csv":
        path.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=130)
    return path


def read(root: Path, split: str) -> list[dict[str, Any]]:
    return list(SplitRows(root / "runs/r/raw" / split).rows())


def folder_bytes(root: Path) -> dict[str, bytes]:
    raw = root / "runs/r/raw"
    return {str(path.relative_to(raw)): path.read_bytes() for path in raw.rglob("*") if path.is_file()}


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"text": f"text {i}", "label": i % 3} for i in range(count)]


def splits_by_text(root: Path) -> dict[str, str]:
    return {row["text"]: split for split in SPLITS for row in read(root, split)}


def test_given_splits_are_used_with_consecutive_row_ids(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", [{"text": "a"}, {"text": "b"}])
    write_json_lines(tmp_path / "validation.jsonl", [{"text": "c"}])
    write_json_lines(tmp_path / "test.jsonl", [{"text": "d"}, {"text": "e"}])
    report = run(tmp_path, validation="validation.jsonl", test="test.jsonl", split={"validation": 0.0, "test": 0.0})
    assert read(tmp_path, "train") == [{"row_id": 0, "text": "a"}, {"row_id": 1, "text": "b"}]
    assert read(tmp_path, "validation") == [{"row_id": 2, "text": "c"}]
    assert read(tmp_path, "test") == [{"row_id": 3, "text": "d"}, {"row_id": 4, "text": "e"}]
    assert report.rows == {"train": 2, "validation": 1, "test": 2}
    assert report.columns == {"row_id": "int64", "text": "string"}
    assert json.loads((tmp_path / "runs/r/raw/source.json").read_text()) == report.model_dump()


def test_missing_splits_are_taken_from_the_training_rows(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(2000))
    write_json_lines(tmp_path / "test.jsonl", [{"text": "t", "label": 0}])
    report = run(tmp_path, test="test.jsonl", split={"test": 0.0})
    assert report.rows["test"] == 1
    assert 150 < report.rows["validation"] < 250
    ids = sorted(row["row_id"] for split in SPLITS for row in read(tmp_path, split))
    assert ids == list(range(2001))


def test_rows_keep_their_split_when_others_are_added(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(500))
    run(tmp_path)
    before = splits_by_text(tmp_path)
    # the new rows make `label` a double and add a column
    grown = [*rows_of(500), *({"text": f"new {i}", "label": 0.5, "source": "web"} for i in range(500))]
    random.Random(0).shuffle(grown)
    write_json_lines(tmp_path / "train.jsonl", grown)
    run(tmp_path)
    after = splits_by_text(tmp_path)
    assert {text: after[text] for text in before} == before
    assert set(before.values()) == set(SPLITS)


def test_equal_rows_get_the_same_split(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(100) * 3)
    run(tmp_path)
    places = [
        {split for split in SPLITS for row in read(tmp_path, split) if row["text"] == f"text {i}"} for i in range(100)
    ]
    assert all(len(place) == 1 for place in places)


def test_split_keeps_groups_together(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", [{"text": f"t{i}", "user": f"u{i % 50}"} for i in range(500)])
    run(tmp_path, group_by=["user"])
    users = [{row["user"] for row in read(tmp_path, split)} for split in SPLITS]
    assert not users[0] & users[1]
    assert not users[0] & users[2]
    assert not users[1] & users[2]


MISSING = [None, "", " ", {"id": None}, {"id": ""}]
"""What names no group, beside NaN."""


@pytest.mark.parametrize("missing", MISSING, ids=repr)
def test_rows_without_a_group_are_dealt_one_by_one(tmp_path: Path, missing: Any) -> None:
    """Half of the rows have no customer: as one group, all of them would be in one split."""
    named: Any = (lambda i: {"id": f"c{i}"}) if isinstance(missing, dict) else (lambda i: f"c{i}")
    rows = [{"text": f"t{i}", "customer": missing if i % 2 else named(i % 40)} for i in range(400)]
    write_json_lines(tmp_path / "train.jsonl", rows)
    run(tmp_path, group_by=["customer"], split={"validation": 0.1, "test": 0.2})
    alone = {split: sum(row["customer"] == missing for row in read(tmp_path, split)) for split in SPLITS}
    assert sum(alone.values()) == 200
    assert 100 < alone["train"] < 170
    assert 20 < alone["test"] < 60


def test_a_row_with_a_part_of_a_group_key_is_in_a_group(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", [{"text": f"t{i}", "user": None, "order": i % 30} for i in range(300)])
    run(tmp_path, group_by=["user", "order"])
    orders = [{row["order"] for row in read(tmp_path, split)} for split in SPLITS]
    assert sum(map(len, orders)) == 30


def test_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(20_000))
    first = run(tmp_path)
    before = folder_bytes(tmp_path)
    assert run(tmp_path) == first
    assert folder_bytes(tmp_path) == before
    names = ("00000.parquet", "_common_metadata", "_manifest.json")
    assert set(before) == {"source.json", *(f"{split}/{name}" for split in SPLITS for name in names)}


def test_bytes_do_not_depend_on_the_division_into_files(tmp_path: Path) -> None:
    rows = rows_of(20_000)
    write_json_lines(tmp_path / "train.jsonl", rows)
    whole = run(tmp_path).data_sha256
    for start in range(0, 20_000, 777):
        write_json_lines(tmp_path / f"part-{start:05}.jsonl", rows[start : start + 777])
    assert run(tmp_path, train="part-*.jsonl").data_sha256 == whole


def test_columns_widen_after_row_groups_are_written(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "x", "n": None, "m": i} for i in range(30_000)]
    rows += [{"text": "y", "n": 1, "m": 0.5, "extra": {"a": 1}}, {"text": "z", "extra": {"b": "2"}}]
    write_json_lines(tmp_path / "train.jsonl", rows)
    write_json_lines(tmp_path / "other.jsonl", [{"text": "o"}])
    report = run(tmp_path, validation="other.jsonl", test="other.jsonl")
    assert report.columns["n"] == "int64"
    assert report.columns["m"] == "double"
    assert report.columns["extra"] == "json"
    found = read(tmp_path, "train")
    assert len(found) == 30_002
    assert [row["m"] for row in found[:30_000]] == list(range(30_000))
    assert found[-2] == {"row_id": 30_000, "text": "y", "n": 1, "m": 0.5, "extra": {"a": 1}}
    schemas = {SplitRows(tmp_path / "runs/r/raw" / split).schema for split in SPLITS}
    assert len(schemas) == 1
    assert not list((tmp_path / "runs/r/raw").rglob("*.narrow"))


def test_time_is_linear_in_the_number_of_columns(tmp_path: Path) -> None:
    seconds = []
    for count in (500, 2000):
        write_json_lines(tmp_path / "train.jsonl", [{f"c{j}": i * j for j in range(count)} for i in range(60)])
        started = time.process_time()
        run(tmp_path, split={"validation": 0.3, "test": 0.3})
        seconds.append(time.process_time() - started)
    assert seconds[1] < 8 * seconds[0]  # quadratic time would be 16 times as long


def test_memory_holds_one_row_group_per_split(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(20_000))
    run(tmp_path)
    file = pq.ParquetFile(tmp_path / "runs/r/raw/train/00000.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(2)] == [8192, file.metadata.num_rows - 8192]
    file.close()


def test_first_rows_of_several_types_are_measured(tmp_path: Path) -> None:
    texts = pa.array([f"text {i}" for i in range(60)])
    pq.write_table(pa.table({"text": texts}), tmp_path / "train-1.parquet")
    pq.write_table(pa.table({"text": texts.dictionary_encode()}), tmp_path / "train-2.parquet")
    assert run(tmp_path, train="train-*.parquet", split={"validation": 0.2, "test": 0.2}).columns["text"] == "string"
    pq.write_table(pa.table({"text": pa.array(range(60))}), tmp_path / "train-2.parquet")
    assert run(tmp_path, train="train-*.parquet").columns["text"] == "string"
    assert {"7", "text 7"} < {row["text"] for split in SPLITS for row in read(tmp_path, split)}


@pytest.mark.parametrize("name", ["row_id", "_row"])
def test_column_with_a_name_of_the_pipeline_is_kept_under_another(tmp_path: Path, name: str) -> None:
    rows = [{name: f"own {i}", "text": f"text {i}"} for i in range(60)]
    write_json_lines(tmp_path / "train.jsonl", rows)
    new = f"source_{name.strip('_')}"
    assert list(run(tmp_path).columns) == ["row_id", new, "text"]
    assert all(row[new] == f"own {row['row_id']}" for split in SPLITS for row in read(tmp_path, split))
    write_json_lines(tmp_path / "train.jsonl", [{**row, new: 1} for row in rows])
    with pytest.raises(DataError, match=rf"train.jsonl:1: there are columns `{new}` and"):
        run(tmp_path)


class TestParts:
    """Each part of the source has a shard in every split that has rows of it."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", 1000)

    def test_appended_rows_leave_the_shards_of_other_parts_as_they_are(self, tmp_path: Path) -> None:
        write_json_lines(tmp_path / "train.jsonl", rows_of(2500))
        write_json_lines(tmp_path / "test.jsonl", rows_of(1500))
        run(tmp_path, test="test.jsonl")
        before = {name: data for name, data in folder_bytes(tmp_path).items() if name.endswith(".parquet")}
        # the new rows also add a column, and make another one double
        write_json_lines(tmp_path / "train.jsonl", [*rows_of(2500), *({"label": 0.5, "new": i} for i in range(700))])
        run(tmp_path, test="test.jsonl")
        after = folder_bytes(tmp_path)
        changed = {name for name, data in before.items() if after[name] != data}
        assert changed == {"train/00002.parquet", "validation/00002.parquet"}
        assert {"test/00000.parquet", "test/00001.parquet", "train/00003.parquet"} < set(after)
        assert [row["row_id"] for row in read(tmp_path, "test")] == list(range(3200, 4700))
        train = read(tmp_path, "train")
        first, last = train[0]["row_id"], train[-1]["row_id"]
        assert train[0] == {"row_id": first, "text": f"text {first}", "label": float(first % 3), "new": None}
        assert train[-1] == {"row_id": last, "text": None, "label": 0.5, "new": last - 2500}

    def test_ids_go_on_from_part_to_part(self, tmp_path: Path) -> None:
        write_json_lines(tmp_path / "train.jsonl", rows_of(3300))
        run(tmp_path)
        rows = {split: read(tmp_path, split) for split in SPLITS}
        assert sorted(row["row_id"] for of in rows.values() for row in of) == list(range(3300))
        assert all(row["text"] == f"text {row['row_id']}" for of in rows.values() for row in of)
        stored = SplitRows(tmp_path / "runs/r/raw/test")
        ids = [row["row_id"] for row in rows["test"]]
        assert list(stored.pick(ids)) == rows["test"]
        assert list(stored.pick([-1, rows["train"][0]["row_id"], 3300])) == []

    def test_parts_do_not_depend_on_the_division_into_files(self, tmp_path: Path) -> None:
        rows = rows_of(5300)
        write_json_lines(tmp_path / "train.jsonl", rows)
        whole = run(tmp_path).data_sha256
        for start in range(0, 5300, 777):
            write_json_lines(tmp_path / f"part-{start:05}.jsonl", rows[start : start + 777])
        assert run(tmp_path, train="part-*.jsonl").data_sha256 == whole

    def test_long_rows_make_small_parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tasks.ingestion.parts._PART_BYTES", 100_000)
        write_json_lines(tmp_path / "train.jsonl", [{"text": "x" * 1000, "label": i} for i in range(200)])
        run(tmp_path)
        shards = SplitRows(tmp_path / "runs/r/raw/train").manifest.shards
        assert [shard.first_row_id for shard in shards] == [0, 64, 128, 192]


class TestWorkInProportion:
    """Parts are written by several processes, and those that an earlier run wrote are not written again."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", 100)
        for module in ("csv_tables", "json_files"):
            monkeypatch.setattr(f"tasks.ingestion.formats.{module}.PLACE_ROWS", 50)
        self.written: list[int] = []
        write = parts._write_files

        def noted(choice: Any, division: Any, folder: Path, part: Any) -> Any:
            self.written.append(part[0])
            return write(choice, division, folder, part)

        monkeypatch.setattr(parts, "_write_files", noted)

    def run(self, root: Path, code: str = "1", **options: Any) -> list[int]:
        """Ingest, and return the parts that were written."""
        self.written.clear()
        run(root, code=code, **options)
        return list(self.written)

    @pytest.mark.parametrize("suffix", ["jsonl", pytest.param("csv", marks=pytest.mark.slow), "parquet"])
    def test_processes_give_the_bytes_of_one(
        self, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        monkeypatch.setattr("tasks.ingestion.parts.PART_ROWS", 100)
        for part in range(3):
            write(tmp_path, suffix, rows_of(1000)[part * 300 : part * 300 + 300], str(part))
        (tmp_path / "test.jsonl").write_text((json.dumps(rows_of(1)[0]) + "\n") * 50)
        one = run(tmp_path, train=f"[0-9].{suffix}", test="test.jsonl")
        before = folder_bytes(tmp_path)
        assert len([name for name in before if name.startswith("train/0")]) == 9
        assert run(tmp_path, train=f"[0-9].{suffix}", test="test.jsonl", workers=2) == one
        assert folder_bytes(tmp_path) == before

    def test_a_source_that_is_read_in_one_go_has_the_same_parts(self, tmp_path: Path) -> None:
        texts = [f"text {i}" for i in range(450)]
        write_json_lines(tmp_path / "train.jsonl", [{"text": text} for text in texts])
        run(tmp_path)
        before = folder_bytes(tmp_path)
        (tmp_path / "train.txt").write_text("\n".join(texts))
        run(tmp_path, train="train.txt", text_unit="line")
        assert {**folder_bytes(tmp_path), "source.json": b""} == {**before, "source.json": b""}

    def test_only_new_parts_are_written(self, tmp_path: Path) -> None:
        write_json_lines(tmp_path / "train.jsonl", rows_of(550))
        assert self.run(tmp_path) == [0, 1, 2, 3, 4, 5]
        before = folder_bytes(tmp_path)
        assert self.run(tmp_path) == []
        assert folder_bytes(tmp_path) == before
        write_json_lines(tmp_path / "train.jsonl", rows_of(650))
        assert self.run(tmp_path) == [5, 6]
        grown = folder_bytes(tmp_path)
        run(tmp_path)  # all of it
        assert folder_bytes(tmp_path) == grown
        rows = rows_of(650)
        rows[150]["text"] = "another text"
        write_json_lines(tmp_path / "train.jsonl", rows)
        assert self.run(tmp_path) == [1]
        write_json_lines(tmp_path / "train.jsonl", rows[:300])
        assert self.run(tmp_path) == []
        assert len(list((tmp_path / ".scratch/r/shards/ingest").iterdir())) == 3, "what was not used is gone"

    @pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
    @pytest.mark.parametrize("edited", [0, 250, 549])
    def test_nothing_is_kept_of_bytes_that_are_not_those_of_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, edited: int
    ) -> None:
        """The file is edited after it was hashed and before it is read; then the edit is undone."""
        path = write(tmp_path, suffix, rows_of(550))
        before = path.read_bytes()
        cut = parts.divide_files_into_parts

        def edit_after(files: Any) -> Any:
            parts = [*cut(files)]
            rows = rows_of(550)
            rows[edited]["text"] = rows[edited]["text"].replace("text", "TEXT")
            write(tmp_path, suffix, rows)
            return parts

        monkeypatch.setattr(parts, "divide_files_into_parts", edit_after)
        with pytest.raises(InputsChangedError, match="changed while its rows were"):
            self.run(tmp_path, train=path.name)
        monkeypatch.setattr(parts, "divide_files_into_parts", cut)
        path.write_bytes(before)
        self.run(tmp_path, train=path.name)
        kept = folder_bytes(tmp_path)
        run(tmp_path, train=path.name)
        assert folder_bytes(tmp_path) == kept

    def test_parts_of_two_splits_of_the_source_are_kept_apart(self, tmp_path: Path) -> None:
        """Both are number 0, and the train part has rows of two splits."""
        write_json_lines(tmp_path / "test.jsonl", rows_of(20))
        for label in (0, 1):
            write_json_lines(tmp_path / "train.jsonl", [{"text": f"text {i}", "label": label} for i in range(50)])
            assert self.run(tmp_path, test="test.jsonl") == [0] * (2 - label)
            found = folder_bytes(tmp_path)
            run(tmp_path, test="test.jsonl")  # all of it
            assert folder_bytes(tmp_path) == found

    def test_other_settings_or_code_write_all(self, tmp_path: Path) -> None:
        write_json_lines(tmp_path / "train.jsonl", rows_of(250))
        self.run(tmp_path)
        for options in ({"seed": 2}, {"split": {"test": 0.2}}, {"group_by": ["text"]}, {"code": "2"}):
            assert self.run(tmp_path, **options) == [0, 1, 2]

    def test_a_run_that_failed_keeps_what_it_had_done(self, tmp_path: Path) -> None:
        write_json_lines(tmp_path / "train.jsonl", rows_of(650))
        with (tmp_path / "train.jsonl").open("a", encoding="utf-8") as file:
            file.write("{")
        with pytest.raises(DataError, match=r"train.jsonl:651"):
            self.run(tmp_path)
        write_json_lines(tmp_path / "train.jsonl", rows_of(650))
        assert self.run(tmp_path) == [6]

    def test_a_wider_type_in_a_new_part_counts_for_kept_parts(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_json_lines(tmp_path / "train.jsonl", rows_of(200))
        self.run(tmp_path)
        write_json_lines(tmp_path / "train.jsonl", [*rows_of(200), {"text": "a", "label": "b"}])
        assert self.run(tmp_path) == [2]
        assert {row["label"] for split in SPLITS for row in read(tmp_path, split)} == {"0", "1", "2", "b"}
        assert (
            "column `label` holds int64 (train.jsonl:1) and string (train.jsonl:201): it is read as string"
            in caplog.text
        )


def test_grouping_by_an_unknown_column_suggests_one(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(5))
    with pytest.raises(RecipeError, match=r"data.group_by: the rows have no column `txt`(?s:.*)did you mean `text`"):
        run(tmp_path, group_by=["txt"])


@pytest.mark.parametrize("split", ["validation", "test"])
def test_split_without_share_and_files_is_refused_before_reading(tmp_path: Path, split: str) -> None:
    (tmp_path / "train.jsonl").write_text("not even JSON")
    with pytest.raises(RecipeError, match=rf"data.split.{split}: there would be no {split} rows"):
        run(tmp_path, split={split: 0.0})


def test_shares_without_training_rows_are_refused(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(5))
    with pytest.raises(RecipeError, match="no training rows"):
        run(tmp_path, split={"validation": 0.5, "test": 0.5})


def test_empty_split_is_an_error(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", [{"text": "only one"}])
    with pytest.raises(DataError, match=r"(?s)validation: none of 1 training rows.*raise data.split.validation"):
        run(tmp_path)
    (tmp_path / "blank.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"test: the split has no rows"):
        run(tmp_path, validation="train.jsonl", test="blank.jsonl")


def test_failure_keeps_earlier_artifacts(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(200))
    run(tmp_path)
    before = folder_bytes(tmp_path)
    write_json_lines(tmp_path / "train.jsonl", rows_of(20_000))
    with (tmp_path / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write("{")
    with pytest.raises(DataError):
        run(tmp_path)
    assert folder_bytes(tmp_path) == before
    assert [path.name for path in (tmp_path / "runs/r").iterdir()] == ["raw"]


_FULL_DISK = """
import json, resource, signal, sys, warnings
from collections.abc import Sequence
from pathlib import Path
from params import StorageError
from params.foundation.artifacts import Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.shards.split_rows import SplitRows
from tasks.ingestion.stage import ingest
warnings.simplefilter("error")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
source = {"kind": "files", "train": "train.jsonl"}
try:
    ingest(Artifacts("r", Path(sys.argv[1])), data=Data.model_validate({"source": source}), seed=1, launch=Launch(micro_batch_size=1))
except StorageError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("limit_bytes", [0, 3000, 200_000])  # source.json and Parquet headers, a footer, a row group
def test_full_disk_is_a_storage_error_and_leaves_no_files(tmp_path: Path, limit_bytes: int) -> None:
    write_json_lines(tmp_path / "train.jsonl", rows_of(200))
    run(tmp_path)
    before = folder_bytes(tmp_path)
    noise = random.Random(0)
    write_json_lines(tmp_path / "train.jsonl", [{"text": noise.randbytes(50).hex()} for _ in range(20_000)])
    command = [forked.python(), "-c", _FULL_DISK, str(tmp_path), str(limit_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (os.EX_IOERR, "")
    assert f"{tmp_path / 'runs/r/raw'}" in done.stdout
    assert "File too large" in done.stdout
    assert "MiB free" in done.stdout
    assert folder_bytes(tmp_path) == before
    assert [path.name for path in (tmp_path / "runs/r").iterdir()] == ["raw"]


SHARES = {"test": 0.1, "validation": 0.1}


def test_split_depends_on_the_seed() -> None:
    rows = [{"text": f"text {i}", "label": i % 3} for i in range(300)]
    assert [assign_split(row, SHARES, 1) for row in rows] != [assign_split(row, SHARES, 2) for row in rows]
    assert {assign_split(row, SHARES, 1) for row in rows} == set(SPLITS)


def test_split_of_known_rows_never_changes() -> None:
    # A change here moves rows of existing users between their splits.
    found = [assign_split({"text": f"text {i}"}, SHARES, 17) for i in range(40)]
    assert [i for i, split in enumerate(found) if split == "test"] == [5, 19, 21, 23, 34, 38]
    assert [i for i, split in enumerate(found) if split == "validation"] == [11, 12, 13, 22, 27, 31]


def test_canonical_json_ignores_how_values_are_stored() -> None:
    same = canonical_json({"a": 1, "b": {"x": None, "y": [2.0]}, "c": None})
    assert same == canonical_json({"b": {"y": [2]}, "a": 1.0}) == '{"a":1,"b":{"y":[2]}}'
    assert canonical_json({"a": "1"}) != canonical_json({"a": 1})
    assert canonical_json({"a": 1.5}) != canonical_json({"a": 1})

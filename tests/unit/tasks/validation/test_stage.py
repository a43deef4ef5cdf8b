"""The validate stage: which rows pass, which are quarantined, and its errors."""

from __future__ import annotations

import json
import math
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import DataError
from params.foundation.artifacts import GROUP_BY, SPLITS
from params.schema import ObjectiveChoice
from params.sections.rows import Expectation
from tasks.shards.split_rows import SEEN, SplitRows
from tests.support.validation import LANGUAGE, LONG, UNIQUE, good_rows, quarantine_reasons, run_validation, write_raw

CLASSES = ObjectiveChoice(name="sequence_classification")


def test_good_rows_pass_unchanged(tmp_path):
    columns = {
        "text": ["a fine text", "another"],
        "n": pa.array([1, None], pa.int32()),
        "tags": [["x"], []],
        "score": [0.5, 1.5],
    }
    held_out = {"validation": {k: v[:1] for k, v in columns.items()}, "test": columns}
    held_out = {
        split: own | {"text": [f"{split} {i}" for i in range(len(own["n"]))]} for split, own in held_out.items()
    }
    artifacts = write_raw(tmp_path, train=columns, **held_out)
    for split in SPLITS:
        path = artifacts.raw / split / "_common_metadata"
        pq.write_metadata(pq.read_schema(path).with_metadata({"key": "value"}), path)
    report = run_validation(artifacts)
    for split in SPLITS:
        rows = SplitRows(artifacts.rows / split)
        assert rows.table().equals(SplitRows(artifacts.raw / split).table(), check_metadata=True)
        assert rows.schema.metadata == {b"key": b"value"}
    assert quarantine_reasons(artifacts) == {}
    assert (report.rows_in, report.quarantined, report.share) == ({"train": 2, "validation": 1, "test": 2}, 0, 0)


def group(artifacts, *columns):
    """Let rows with equal values of some columns belong together."""
    for split in SPLITS:
        path = artifacts.raw / split / "_common_metadata"
        pq.write_metadata(pq.read_schema(path).with_metadata({GROUP_BY: json.dumps(columns)}), path)


def test_a_group_is_in_one_split_and_held_out_rows_stay(tmp_path):
    def rows(users, name):
        return {"text": [f"{name} {i}" for i in range(len(users))], "user": pa.array(users, pa.int64())}

    train, validation = rows([1, 2, 2, 3, None, 4], "a"), rows([2, 5, None, 4], "b")
    artifacts = write_raw(tmp_path, train=train, validation=validation, test=rows([4, 6, None], "c"))
    group(artifacts, "user")
    report = run_validation(artifacts)
    assert good_rows(artifacts) == [0, 3, 4], "rows without a group are on their own"
    assert report.rows_out == {"train": 3, "validation": 3, "test": 3}
    check = "group_is_in_one_split(column_list=['user']), repeats row"
    assert quarantine_reasons(artifacts) == {
        ("train", 1): [f"{check} 6 of validation"],
        ("train", 2): [f"{check} 6 of validation"],
        ("train", 5): [f"{check} 10 of test"],
        ("validation", 9): [f"{check} 10 of test"],
    }
    assert "group_is_in_one_split" in (artifacts.validated / "report.html").read_text()


@pytest.mark.parametrize(
    "missing",
    [[None, None], ["", " "], [math.nan, None], [{"id": None}, None], [{"id": ""}, {"id": " "}]],
    ids=["null", "blank", "NaN", "record of null", "record of blanks"],
)
def test_rows_without_a_group_may_be_in_two_splits(tmp_path, missing):
    """The same rule as in ingest, drift and the gate: such a row belongs with no other."""
    train, held_out = {"text": ["a", "b"], "user": missing}, {"text": ["c", "d"], "user": missing}
    artifacts = write_raw(tmp_path, train=train, test=held_out)
    group(artifacts, "user")
    run_validation(artifacts)
    assert quarantine_reasons(artifacts) == {}


def test_a_group_of_a_column_with_several_types_is_found_as_ingest_finds_it(tmp_path):
    def rows(users, name):
        return {"text": [f"{name} {i}" for i in range(len(users))], "user": users}

    artifacts = write_raw(tmp_path, train=rows(["7", "8", "9.5"], "a"), test=rows(["7.0", "9.50", "8.1"], "b"))
    group(artifacts, "user")
    run_validation(artifacts)
    assert quarantine_reasons(artifacts) == {}, "texts that all are written by somebody stay what they are"
    for split in SPLITS:
        path = artifacts.raw / split / "_common_metadata"
        schema = pq.read_schema(path)
        place = schema.get_field_index("user")
        mixed = schema.field(place).with_metadata({SEEN: "int64 and string"})
        pq.write_metadata(schema.set(place, mixed).with_metadata(schema.metadata), path)
    run_validation(artifacts)
    assert list(quarantine_reasons(artifacts)) == [("train", 0), ("train", 2)]


def test_groups_may_be_named_by_records(tmp_path):
    train, held_out = {"text": ["a", "b"], "user": [{"id": 1}, {"id": 2}]}, {"text": ["c"], "user": [{"id": 2}]}
    artifacts = write_raw(tmp_path, train=train, test=held_out)
    group(artifacts, "user")
    run_validation(artifacts)
    assert list(quarantine_reasons(artifacts)) == [("train", 1)]


def test_a_row_that_is_set_aside_is_of_no_group(tmp_path):
    train = {"text": ["fine", "too"], "user": [1, 2], "country": ["de", "de"]}
    held_out = {"text": ["", "good"], "user": [1, 2], "country": ["de", "fr"]}
    artifacts = write_raw(tmp_path, train=train, test=held_out)
    group(artifacts, "user", "country")
    run_validation(artifacts)
    assert list(quarantine_reasons(artifacts)) == [("test", 3)]
    assert good_rows(artifacts) == [0, 1]


def test_null_and_blank_texts_are_quarantined(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good", None, "", " \n\t", "\u3000\u00a0", "also good"]})
    report = run_validation(artifacts, UNIQUE, LONG)
    assert good_rows(artifacts) == [0, 5]
    reasons = quarantine_reasons(artifacts)
    assert reasons["train", 1] == ["expect_column_values_to_not_be_null(column='text')"]
    blank = r"expect_column_values_to_match_regex(column='text', regex='\S')"
    assert [r[0] for key, r in reasons.items() if key != ("train", 1)] == [blank] * 3  # Unicode white space too
    assert report.rows_out == {"train": 2, "validation": 1, "test": 1}
    assert report.quarantined == 4


def test_first_of_equal_rows_stays(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["one", "two", "one", "three", "one", "two"]})
    report = run_validation(artifacts, UNIQUE)
    assert good_rows(artifacts) == [0, 1, 3]
    assert quarantine_reasons(artifacts)["train", 4] == [
        "expect_column_values_to_be_unique(column='text'), repeats row 0 of train"
    ]
    (unique,) = [c for c in report.checks if c.type == UNIQUE.type]
    assert (unique.unexpected_count, unique.success, unique.origin) == (3, False, "recipe")
    assert [(e.row_id, e.split, e.value) for e in unique.examples] == [
        (2, "train", "'one'"),
        (4, "train", "'one'"),
        (5, "train", "'two'"),
    ]


def test_training_row_that_repeats_a_held_out_row_is_quarantined(tmp_path):
    artifacts = write_raw(
        tmp_path,
        train={"text": ["own", "in test", "in validation"]},
        validation={"text": ["in validation", "in test", "mine"]},
        test={"text": ["in test"]},
    )
    run_validation(artifacts, UNIQUE)
    assert good_rows(artifacts, column="text") == ["own"]
    assert good_rows(artifacts, "validation", "text") == ["in validation", "mine"]
    assert good_rows(artifacts, "test", "text") == ["in test"]
    assert quarantine_reasons(artifacts)["train", 1][0].endswith("repeats row 6 of test")


def test_good_row_does_not_repeat_a_bad_one(tmp_path):
    artifacts = write_raw(
        tmp_path,
        train={"text": ["same", "same", "same"], "kind": ["bad", "good", "good"]},
        validation={"text": ["v"], "kind": ["good"]},
        test={"text": ["t"], "kind": ["good"]},
    )
    run_validation(
        artifacts, UNIQUE, Expectation(type="expect_column_values_to_be_in_set", column="kind", value_set=["good"])
    )
    assert good_rows(artifacts) == [1]


def test_uniqueness_over_several_columns(tmp_path):
    compound = Expectation(type="expect_compound_columns_to_be_unique", column_list=["text", "tags"])
    rows = {"text": ["a", "a", "a"], "tags": ["x", "y", "x"]}
    artifacts = write_raw(
        tmp_path, train=rows, validation={"text": ["v"], "tags": ["x"]}, test={"text": ["t"], "tags": ["x"]}
    )
    run_validation(artifacts, compound)
    assert good_rows(artifacts) == [0, 1]


def test_large_integers_beside_nulls_stay_distinct(tmp_path):
    """As floats, 2**60 and 2**60 + 1 would be one number."""
    column = {"text": ["a", "b", "c"], "key": [2**60, 2**60 + 1, None]}
    artifacts = write_raw(
        tmp_path, train=column, validation={"text": ["v"], "key": [1]}, test={"text": ["t"], "key": [2]}
    )
    run_validation(artifacts, Expectation(type="expect_column_values_to_be_unique", column="key"))
    assert good_rows(artifacts) == [0, 1, 2]
    run_validation(
        artifacts, Expectation(type="expect_column_values_to_be_in_set", column="key", value_set=[1, 2, 2**60])
    )
    assert good_rows(artifacts) == [0, 2]


def test_failing_rows_beyond_the_limits_of_gx_are_found(tmp_path):
    """GX lists 20 rows by default and caps lists of values at 200."""
    artifacts = write_raw(tmp_path, train={"text": ["ab" if i % 2 else "abc" for i in range(3000)]})
    report = run_validation(artifacts, LONG)
    assert report.quarantined == 1500
    assert good_rows(artifacts) == list(range(0, 3000, 2))


def test_rows_stay_in_their_shards(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 3)
    texts = ["good", "no", "also good", "fine", "well", "done", "no", "no", "no", "last"]
    artifacts = write_raw(tmp_path, train={"text": texts}, test={"text": ["held out"] * 4})
    run_validation(artifacts, LONG)
    rows, raw = SplitRows(artifacts.rows / "train"), SplitRows(artifacts.raw / "train")
    assert [(s.name, s.rows, s.first_row_id) for s in rows.manifest.shards] == [
        ("00000.parquet", 2, 0),
        ("00001.parquet", 3, 3),
        ("00003.parquet", 1, 9),
    ]
    assert rows.table().to_pylist() == [row for row in raw.table().to_pylist() if row["text"] != "no"]
    assert rows.manifest.shards[1] == raw.manifest.shards[1], "all of its rows are good"
    assert good_rows(artifacts, "test") == [11, 12, 13, 14]


def test_check_can_be_limited_to_one_split(tmp_path):
    only_train = Expectation(
        type=LONG.type,
        column="text",
        min_value=3,
        row_condition={"type": "comparison", "column": {"name": "split"}, "operator": "==", "parameter": "train"},
    )
    artifacts = write_raw(tmp_path, train={"text": ["good", "no"]}, test={"text": ["no"]})
    run_validation(artifacts, only_train)
    assert list(quarantine_reasons(artifacts)) == [("train", 1)]


def test_source_column_split_is_kept(tmp_path):
    rows = {"text": ["good", "no"], "split": ["x", "y"]}
    test = rows | {"text": ["fine", "so"]}
    artifacts = write_raw(tmp_path, train=rows, validation={"text": ["vvv"], "split": ["x"]}, test=test)
    run_validation(
        artifacts, LONG, Expectation(type="expect_column_values_to_be_in_set", column="split", value_set=["x", "y"])
    )
    assert good_rows(artifacts, column="split") == ["x"]
    bad = pq.read_table(artifacts.validated / "quarantine.parquet")
    assert bad.column_names == ["row_id", "split", "reasons", "text", "source_split"]
    assert bad["source_split"].to_pylist() == ["y", "y"]
    assert bad.schema.field("reasons").type == pa.list_(pa.string())


def test_failing_rows_stay_when_mostly_allows_them(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good"] * 9 + ["no"]})
    report = run_validation(artifacts, Expectation(type=LONG.type, column="text", min_value=3, mostly=0.9))
    assert len(good_rows(artifacts)) == 10
    (found,) = (check for check in report.checks if check.type == LONG.type)
    assert (found.success, found.unexpected_count) == (True, 1)


def test_failing_rows_stay_when_they_are_only_reported(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good", "no"]})
    report = run_validation(artifacts, Expectation(type=LONG.type, column="text", min_value=3, on_failure="report"))
    assert good_rows(artifacts) == [0, 1]
    (found,) = (check for check in report.checks if check.type == LONG.type)
    assert (found.success, found.unexpected_count, report.quarantined) == (False, 1, 0)


def test_failing_checks_name_rows_and_values(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good", "no", "x" * 500] + ["no"] * 20})
    strict = Expectation(type=LONG.type, column="text", min_value=3, max_value=99, on_failure="fail")
    with pytest.raises(DataError) as caught:
        run_validation(artifacts, strict, Expectation(type="expect_table_row_count_to_equal", value=7))
    message = str(caught.value)
    assert "22 of 25 rows fail; row 1 of train: 'no'; row 2 of train: 'xxx" in message
    assert message.count(" of train: ") == 10
    assert "x" * 100 not in message
    assert "expect_table_row_count_to_equal(value=7): the table fails; observed 25" in message  # it names no rows


def test_label_missing_from_training_is_named_with_its_rows(tmp_path):
    artifacts = write_raw(
        tmp_path,
        dealt=["validation", "test"],
        train={"text": ["a", "b"], "label": ["refund", "card"]},
        validation={"text": ["c"], "label": ["card"]},
        test={"text": ["d", "e"], "label": ["refund", "mortgage"]},
    )
    run_validation(artifacts, objective=CLASSES)
    reason = "row_is_known_to_training(): no training row has the label 'mortgage'"
    assert quarantine_reasons(artifacts) == {("test", 2): [reason]}


def test_label_with_only_quarantined_training_rows_is_unknown(tmp_path):
    artifacts = write_raw(
        tmp_path,
        dealt=["validation", "test"],
        train={"text": ["a", None, "b"], "label": [1, 2, 3]},
        validation={"text": ["c"], "label": [1]},
        test={"text": ["d"], "label": [2]},
    )
    message = "no rows remain in test\nno training row has a label of test: '2' \\(1 rows\\)"
    with pytest.raises(DataError, match=message):
        run_validation(artifacts, objective=CLASSES)


def test_too_many_bad_rows_are_an_error(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good", None, "no", "No", "good too", "fine", "well", "yes!"]})
    with pytest.raises(DataError) as caught:
        run_validation(artifacts, LONG, max_quarantined=0.25)
    message = str(caught.value)
    assert "3 of 10 rows (30.0%) would be set aside, more than validation.max_quarantined = 0.25 allows" in message
    lengths = message.index("2 rows: expect_column_value_lengths")  # most frequent first
    assert "row 2 of train: 'no'; row 3 of train: 'No'" in message[lengths:]
    assert lengths < message.index("1 rows: expect_column_values_to_not_be_null(column='text'); row 1 of train: null")
    assert "raise validation.max_quarantined" in caught.value.fix
    assert run_validation(artifacts, LONG, max_quarantined=0.3).quarantined == 3


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": {"text": ["good"] * 8}, "test": {"text": ["no"]}}, "no rows remain in test"),
        ({"train": {"text": ["good"] * 8}, "test": {"text": pa.nulls(2)}}, "no rows remain in test"),  # of type null
        ({"train": {"text": ["no"] * 2}}, "no rows remain in train"),
        ({s: {"text": ["no"]} for s in SPLITS}, "no rows remain in any split: all 3 rows would be set aside"),
    ],
)
def test_split_with_only_bad_rows_is_an_error(tmp_path, splits, message):
    with pytest.raises(DataError, match=message):
        run_validation(write_raw(tmp_path, **splits), LONG, max_quarantined=0.99)


def test_held_out_split_may_be_empty(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good"]}, test={"text": pa.array([], pa.string())})
    assert run_validation(artifacts).rows_out == {"train": 1, "validation": 1, "test": 0}


def test_missing_columns_are_named_together(tmp_path):
    artifacts = write_raw(tmp_path, **{split: {"txt": ["good"], "kind": ["x"]} for split in SPLITS})
    with pytest.raises(DataError) as caught:
        run_validation(artifacts, Expectation(type="expect_column_values_to_not_be_null", column="knid"))
    assert "there is no column `text`, which the objective causal_lm needs" in caught.value.what
    assert "there is no column `knid`, which a check in validation.expectations" in caught.value.what
    assert "columns: row_id, txt, kind" in caught.value.what
    assert "did you mean `txt`?" in caught.value.fix
    assert "did you mean `kind`?" in caught.value.fix


@pytest.mark.parametrize(
    ("columns", "objective", "message"),
    [
        ({"text": [1.5, 2.5]}, LANGUAGE, "column `text` must hold text, but holds double"),
        ({"text": ["a"], "label": [[1]]}, CLASSES, "column `label` must hold text or integers"),
    ],
)
def test_column_of_the_wrong_type_is_an_error(tmp_path, columns, objective, message):
    with pytest.raises(DataError, match=message):
        run_validation(write_raw(tmp_path, **dict.fromkeys(SPLITS, columns)), objective=objective)


def test_missing_and_damaged_files_are_errors(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good"]})
    shard = artifacts.raw / "test/00000.parquet"
    shard.write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match=r"test/00000\.parquet: is not the file that its manifest describes"):
        run_validation(artifacts)
    shard.unlink()
    with pytest.raises(DataError, match=r"test/00000\.parquet: does not exist"):
        run_validation(artifacts)
    (artifacts.raw / "test/_manifest.json").write_text("torn")
    with pytest.raises(DataError, match=r"test/_manifest\.json: cannot be read"):
        run_validation(artifacts)
    shutil.rmtree(artifacts.raw)
    with pytest.raises(DataError, match=r"raw/train: does not exist\n  fix: run the stage that writes it first"):
        run_validation(artifacts)


def test_same_rows_give_the_same_files(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good", None, "no", "good", "good"]})
    aggregate = Expectation(
        type="expect_column_distinct_values_to_be_in_set", column="text", value_set=["x"], on_failure="report"
    )

    def written():
        run_validation(artifacts, UNIQUE, LONG, aggregate)
        files = [p for p in artifacts.validated.rglob("*") if p.is_file()]
        return {str(p.relative_to(artifacts.validated)): p.read_bytes() for p in files}

    first = written()
    names = ["evergreen-data-profile.dat", "quarantine.parquet", "report.html", "start/start.json", "validation.json"]
    names += [
        f"rows/{split}/{name}" for split in SPLITS for name in ("00000.parquet", "_common_metadata", "_manifest.json")
    ]
    assert sorted(first) == sorted(names)
    assert written() == first


def test_returned_report_is_on_disk(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good", None]})
    report = run_validation(artifacts)
    assert json.loads(artifacts.report("validate").read_text()) == report.model_dump(mode="json")
    assert report.share == pytest.approx(1 / 4)


def test_failing_run_keeps_earlier_results_and_explains(tmp_path):
    artifacts = write_raw(tmp_path, train={"text": ["good", "no"]})
    run_validation(artifacts)
    before = {p: p.read_bytes() for p in artifacts.validated.rglob("*") if p.is_file()}
    failed = artifacts.scratch / "validation-failed"
    with pytest.raises(DataError) as caught:
        run_validation(artifacts, Expectation(type=LONG.type, column="text", min_value=3, on_failure="fail"))
    assert str(failed / "report.html") in caught.value.fix
    assert "validation failed" in (failed / "report.html").read_text()
    assert pq.read_table(failed / "quarantine.parquet")["row_id"].to_pylist() == [1]
    assert {p: p.read_bytes() for p in artifacts.validated.rglob("*") if p.is_file()} == before
    run_validation(artifacts)
    assert not failed.exists(), "a success removes an earlier failure"

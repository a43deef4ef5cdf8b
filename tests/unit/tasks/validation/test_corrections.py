"""Corrections: labels of people in place of those of the source, found by what the row says, or by its hash."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from params import DataError, RecipeError
from params.foundation.artifacts import CORRECTIONS, SPLITS
from params.schema import ObjectiveChoice
from params.sections.rows import Expectation
from tasks.shards.split_rows import SCHEMA, SplitRows
from tasks.validation import corrections
from tasks.validation.corrections import find_columns
from tests.support import tiny
from tests.support.validation import good_rows, run_validation, write_raw
from trainer import objectives
from trainer.objectives.bases.rows import format_row_hash, hash_row_values, label_columns

CLASSES = ObjectiveChoice(name="sequence_classification")
TEXTS = ["pay my bill", "send a card", "pay the rent", "lost my card", "pay my bill"]
LABELS = ["card", "card", "bill", "card", "card"]


def hashed(*values):
    return format_row_hash(hash_row_values(values))


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.tiny.PART_ROWS", 3)
    held_out = {"text": ["a new card", "my bill"], "label": ["bill", "card"], "day": [1, 2]}
    train = {"text": TEXTS, "label": LABELS, "day": [*range(5)]}
    return write_raw(tmp_path, train=train, validation=held_out, test={"text": ["card"], "label": ["card"], "day": [7]})


def held_out(columns):
    """The same labels with other texts."""
    return {
        split: columns | {"text": [f"{split} {text}" for text in columns["text"]]} for split in ("validation", "test")
    }


def correct(artifacts, columns, objective=CLASSES, **options):
    tiny.write_splits(artifacts.raw, {CORRECTIONS: columns})
    return run_validation(artifacts, objective=objective, **options)


def test_a_filled_in_review_changes_all_rows_that_say_the_same(artifacts, caplog):
    before = {shard.name: shard.sha256 for shard in SplitRows(artifacts.raw / "train").manifest.shards}
    review = {
        "row_hash": [hashed("pay my bill"), hashed("a new card"), hashed("send a card"), hashed("nobody says this")],
        "text": ["pay my ... (2,000 characters)", "", "", ""],
        "label": ["card", "bill", "card", "card"],
        "corrected_label": ["bill", "card", None, "card"],
    }
    with caplog.at_level("WARNING"):
        report = correct(artifacts, review)
    assert good_rows(artifacts, column="label") == ["bill", "card", "bill", "card", "bill"]
    assert good_rows(artifacts, "validation", "label") == ["card", "card"]
    assert good_rows(artifacts) == [0, 1, 2, 3, 4]
    assert good_rows(artifacts, column="day") == [0, 1, 2, 3, 4]
    found = report.corrections
    assert (found.corrections, found.changed) == (3, {"train": 2, "validation": 1, "test": 0})
    assert found.unmatched == [hashed("nobody says this")]
    assert found.sentence in caplog.text
    assert "3 corrections give 2 train, 1 validation rows another label; 1 match no row: h" in found.sentence
    after = {shard.name: shard.sha256 for shard in SplitRows(artifacts.raw / "train").manifest.shards}
    assert after == before, "the raw rows stay as they are"
    assert not (artifacts.scratch / "corrected-rows").exists()


def test_a_table_of_rows_needs_no_hash(artifacts):
    report = correct(artifacts, {"text": ["pay my bill", "my bill"], "label": ["bill", "bill"]})
    assert good_rows(artifacts, column="label") == ["bill", "card", "bill", "card", "bill"]
    assert report.corrections.changed == {"train": 2, "validation": 1, "test": 0}


def test_a_label_that_no_row_of_the_source_has_is_said(artifacts, caplog):
    """A typing error of a correction would make a label of its own; one that some row of the source has is none."""
    with caplog.at_level("WARNING"):
        correct(artifacts, {"text": ["pay my bill", "my bill"], "label": ["biil", "bill"]})
    assert "no row of the source has 'biil', only data.corrections" in caplog.text


SEVERAL = ObjectiveChoice(name="multi_label_classification")
SAYS_ONLY = "only data.corrections"


@pytest.mark.parametrize(
    ("source", "corrected", "told"),
    [
        pytest.param(["a", "b", "c"], {"t1": "b", "t0": "a"}, "", id="confirmed"),
        pytest.param(["a", "b ", "c"], {"t1": "b"}, "", id="confirmed, with a space in the source"),
        pytest.param(["a", "b", "c"], {"t1": "a", "t2": "b"}, "", id="moved to another row"),
        pytest.param(["a", "b", "c"], {"t1": "a", "t2": "d"}, "'d'", id="new"),
        pytest.param(["a", "b", "c"], {"t1": " d", "t2": "d"}, "'d'", id="new, written in two ways"),
        pytest.param([["a"], ["b"], ["c"]], {"t1": ["b"], "t0": ["a"]}, "", id="several: confirmed"),
        pytest.param([["a"], ["b"], ["c"]], {"t1": ["a", "b"]}, "", id="several: one more beside it"),
        pytest.param([["a"], ["b"], ["c"]], {"t1": ["a"], "t2": ["c", "b"]}, "", id="several: moved"),
        pytest.param([["a"], ["b"], ["c"]], {"t1": ["b", "d"]}, "'d'", id="several: new"),
    ],
)
def test_only_a_label_that_corrections_bring_is_said_to_come_from_them(tmp_path, caplog, source, corrected, told):
    is_several = isinstance(source[0], list)
    column = "labels" if is_several else "label"
    texts = {"text": ["t0", "t1", "t2"], column: source}
    rest = {"text": ["u"], column: source[:1]}
    artifacts = write_raw(tmp_path, train=texts, validation=rest, test={**rest, "text": ["v"]})
    with caplog.at_level("WARNING"):
        columns = {"text": [*corrected], column: [*corrected.values()]}
        correct(artifacts, columns, objective=SEVERAL if is_several else CLASSES)
    said = [message for message in caplog.messages if SAYS_ONLY in message]
    assert [told in message for message in said] == ([True] if told else []), said


@pytest.mark.parametrize("unusable", [{}, {"label": ["a", "b", "c", None]}], ids=["", "and a row without a label"])
def test_a_row_that_is_set_aside_is_of_the_source_all_the_same(tmp_path, caplog, unusable):
    train = {"text": ["t0", "other", "t2", "t3"], "label": ["a", "b", "c", "a"]} | unusable
    rest = {"text": ["u0"], "label": ["a"]}
    artifacts = write_raw(tmp_path, train=train, validation=rest, test={**rest, "text": ["v0"]})
    tiny.write_splits(artifacts.raw, {CORRECTIONS: {"text": ["t2"], "label": ["b"]}})
    short = Expectation(type="expect_column_value_lengths_to_be_between", column="text", max_value=2)
    with caplog.at_level("WARNING"):
        run_validation(artifacts, short, objective=CLASSES)
    assert SAYS_ONLY not in caplog.text


def test_a_confirmed_label_and_no_correction_change_nothing(artifacts):
    run_validation(artifacts, objective=CLASSES)
    plain = SplitRows(artifacts.rows / "train").manifest.shards
    report = correct(artifacts, {"text": ["send a card"], "label": ["card"]})
    assert SplitRows(artifacts.rows / "train").manifest.shards == plain
    assert set(report.corrections.changed.values()) == {0}
    assert report.corrections.unmatched == []


def test_only_new_shards_are_hashed_again(artifacts, monkeypatch):
    read, work = [], corrections.hash_shard_rows
    monkeypatch.setattr(corrections, "hash_shard_rows", lambda *own: read.append(own[1].shard.name) or work(*own))
    for texts, expected in ((["pay my bill"], 4), (["pay my bill", "lost my card"], 0)):
        read.clear()
        labels = ["bill"] * len(texts)
        correct(artifacts, {"text": texts, "label": labels}, inputs=tiny.inputs("validate", artifacts, "1"))
        assert len(read) == expected
        for split in SPLITS:  # ingest keeps what it knows of all rows there, such as the newest time
            path = artifacts.raw / split / SCHEMA
            pq.write_metadata(pq.read_schema(path).with_metadata({"newest": str(len(texts))}), path)
    assert good_rows(artifacts, column="label") == ["bill", "card", "bill", "bill", "bill"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"text": ["card", "card"], "label": ["a", "b"]},
            r"row 1: says {'label': 'b'}, and data.corrections, row 0 says {'label': 'a'}",
        ),
        ({"row_hash": ["17"], "label": ["a"]}, r"row 0: '17' is no row_hash"),
        ({"row_hash": [None, hashed("a")], "label": ["a", "b"]}, r"row 0: has no row_hash"),
        (
            {"text": ["card"], "lable": ["a"]},
            r"needs label, or corrected_label; and row_hash, or text; it has row_id, text, lable",
        ),
        ({"label": ["a"]}, r"needs label, or corrected_label; and row_hash, or text"),
    ],
)
def test_wrong_corrections_are_refused_and_change_nothing(artifacts, columns, told):
    run_validation(artifacts, objective=CLASSES)
    kept = good_rows(artifacts, column="label")
    with pytest.raises(DataError, match=told):
        correct(artifacts, columns)
    assert good_rows(artifacts, column="label") == kept
    assert not (artifacts.scratch / "corrected-rows").exists()


def test_labels_of_another_type_are_refused(tmp_path):
    numbers = {"text": ["a", "b", "c"], "label": [1, 2, 1]}
    artifacts = write_raw(tmp_path, train=numbers, validation=numbers, test=numbers)
    with pytest.raises(DataError, match="a label is not of the type that column `label` has, int64"):
        correct(artifacts, {"text": ["a"], "label": ["x"]})


@pytest.mark.parametrize(
    ("labels", "correction", "told"),
    [
        ([1, 2, 1], 3.5, "type that column `label` has, int64: .*3.5"),
        ([1.0, 2.5, 1.0], "1,5", "row 0: '1,5' is no number"),
    ],
)
def test_no_corrected_number_is_cut_or_left_out(tmp_path, labels, correction, told):
    numbers = {"text": ["a", "b", "c"], "label": labels}
    artifacts = write_raw(tmp_path, train=numbers, validation=numbers, test=numbers)
    with pytest.raises(DataError, match=told):
        correct(artifacts, {"text": ["a"], "label": [correction]}, ObjectiveChoice(name="regression"))


def test_truth_values_of_a_table_are_those_of_the_rows(tmp_path):
    liked = {"text": ["a", "b", "c"], "label": [True, False, True]}
    artifacts = write_raw(tmp_path, train=liked, **held_out(liked))
    correct(artifacts, {"row_hash": [hashed("a"), hashed("b")], "corrected_label": ["False", "true"]})
    assert good_rows(artifacts, column="label") == [False, True, True]


def test_rows_drawn_at_random_are_wrong_if_the_source_says_something_else(tmp_path):
    sets = {"text": ["a b", "b", "c"], "labels": [["a", "b"], ["b"], []]}
    artifacts = write_raw(tmp_path, train=sets, **held_out(sets))
    filled = {"row_hash": [hashed("a b"), hashed("b"), hashed("gone")], "why": ["random", "suspect; random", "random"]}
    filled |= {"given_label": ["a, b", "not a", "b"], "corrected_label": ['["a", "b"]', '["a", "b"]', '["a"]']}
    found = correct(artifacts, filled, ObjectiveChoice(name="multi_label_classification")).corrections
    assert (found.drawn, found.drawn_wrong) == (2, 1)


def test_lists_of_labels_are_json_in_a_table(tmp_path):
    sets = {"text": ["a b", "b", "c"], "labels": [["a"], ["b"], []]}
    artifacts = write_raw(tmp_path, train=sets, **held_out(sets))
    objective = ObjectiveChoice(name="multi_label_classification")
    filled = {"row_hash": [hashed("a b"), hashed("c")], "corrected_label": ['["a", "b"]', "[]"]}
    correct(artifacts, filled, objective)
    assert good_rows(artifacts, column="labels") == [["a", "b"], ["b"], []]
    with pytest.raises(DataError, match=r"row 0: 'a, b' is no list"):
        correct(artifacts, {"row_hash": [hashed("a b")], "corrected_label": ["a, b"]}, objective)


def test_a_review_beside_a_table_of_other_columns_hides_none_of_its_rows(artifacts):
    union = {
        "text": ["pay my bill", None, None],
        "label": ["bill", None, None],
        "row_hash": [None, hashed("a new card"), hashed("send a card")],
        "why": [None, "suspect", "random"],
        "given_label": [None, "bill", "card"],
        "corrected_label": [None, "card", None],
    }
    found = correct(artifacts, union).corrections
    assert (found.corrections, found.changed) == (2, {"train": 2, "validation": 1, "test": 0})


def test_of_several_labels_a_row_is_wrong_if_they_are_others(tmp_path):
    sets = {"text": ["a b", "b", "c"], "labels": [["a"], ["b"], []]}
    artifacts = write_raw(tmp_path, train=sets, **held_out(sets))
    drawn = {
        "row_hash": [hashed("a b"), hashed("b"), hashed("c")],
        "given_label": ["a", "b", ""],
        "labels": ['["a"]', '["b"]', "[]"],
        "why": ["random"] * 3,
        "corrected_label": ['["b", "a"]', '["b"]', "[]"],
    }
    found = correct(artifacts, drawn, ObjectiveChoice(name="multi_label_classification")).corrections
    assert (found.drawn, found.drawn_wrong) == (3, 1)


def test_escaped_cells_of_a_review_are_read_as_they_were(artifacts):
    cells = {"pay my bill": "'\uff1dbill", "send a card": "rock'-n-roll"}
    correct(artifacts, {"row_hash": [*map(hashed, cells)], "corrected_label": [*cells.values()]})
    assert good_rows(artifacts, column="label")[:2] == ["\uff1dbill", "rock'-n-roll"]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("sequence_classification", ["label"]),
        ("multi_label_classification", ["labels"]),
        ("multiple_choice", ["label"]),
        ("regression", ["label"]),
        ("ranking", ["relevance"]),
        ("kto", ["liked"]),
        ("token_classification", ["spans"]),
        ("question_answering", ["answers"]),
        ("sft", []),
        ("causal_lm", []),
    ],
)
def test_labels_of_each_objective(name, labels):
    method = objectives.build_objective(ObjectiveChoice(name=name))
    assert label_columns(method.columns()) == labels
    if not labels:
        with pytest.raises(RecipeError, match="rows of this objective have no label"):
            find_columns(method, ["text"])


def test_rows_that_corrections_make_equal_are_not_in_two_splits(artifacts, caplog):
    """The same text stands in train and test with two labels; people say which is right."""
    texts = {"text": ["card", "pay my bill", "a card"], "label": ["bill", "bill", "card"], "day": [8, 9, 10]}
    tiny.write_splits(artifacts.raw, {"train": texts})
    with caplog.at_level("WARNING"):
        correct(artifacts, {"text": ["card"], "label": ["card"]}, max_quarantined=0)
    assert good_rows(artifacts, column="text") == ["pay my bill", "a card"]
    assert good_rows(artifacts, "test", "text") == ["card"]
    assert (
        "1 train rows are set aside: a split that is held out from them has rows that are equal in text, label"
        in caplog.text
    )

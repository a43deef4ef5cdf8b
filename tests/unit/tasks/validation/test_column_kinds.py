"""Lists of labels and numbers: what is no such thing is set aside, and what the train split lacks fails the stage."""

from __future__ import annotations

import math

import pyarrow.parquet as pq
import pytest

from params import DataError
from params.schema import ObjectiveChoice
from params.sections.rows import Expectation
from tasks.known_rows.rows import ComparedColumns
from tasks.shards.split_rows import SplitRows
from tests.support import new_objectives
from tests.support.validation import good_rows, quarantine_reasons, run_validation, sampled, scanned, write_raw
from trainer import objectives

TOPICS, SIMILARITY = ObjectiveChoice(name="topics"), ObjectiveChoice(name="similarity")
TEXTS = [f"text {i}" for i in range(6)]


@pytest.fixture(autouse=True)
def _new_objectives():
    with new_objectives.known():
        yield


def topics(**train):
    held_out = {"text": ["one"], "topics": [["a"]]}
    return {"train": {"text": TEXTS, **train}, "validation": held_out, "test": {"text": ["two"], "topics": [[]]}}


def test_null_among_labels_is_set_aside_and_no_labels_are_not(tmp_path):
    artifacts = write_raw(tmp_path, **topics(topics=[["a", "b"], [], ["a", None], None, ["b"], ["a"]]))
    run_validation(artifacts, objective=TOPICS)
    assert good_rows(artifacts) == [0, 1, 4, 5]
    reasons = quarantine_reasons(artifacts)
    assert any("topics is null" in reason for reason in reasons["train", 2])


SETS = {
    "lists": ({"labels": [["a", "b"], [], ["a", None], None, [" "], ["a"]]}, "labels", {2, 3, 4}, "is blank"),
    "cats": (
        {"cats": [{"a": one, "b": other} for one, other in ((1.0, 1.0), (0.0, 0.0), (7.0, 0.0), (1.0, None))] + [None] * 2},
        "cats",
        {2, 4, 5},
        "7.0 says neither yes nor no",
    ),
    "a column each": (
        {"a": ["yes", "no", "maybe", "1", None, "yes"], "b": [True, False, True, None, True, False]},
        "{a} {b}",
        {2, 3, 4},
        "'maybe' says neither yes nor no",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", SETS)
def test_labels_that_say_neither_yes_nor_no_are_set_aside_and_drift_counts_the_others(tmp_path, form):
    columns, named, bad, reason = SETS[form]
    rows = {"text": TEXTS, **columns}
    held_out = {name: values[:1] for name, values in rows.items()}
    held_out = {split: {**held_out, "text": [split]} for split in ("validation", "test")}
    artifacts = write_raw(tmp_path, train=rows, **held_out)
    choice = ObjectiveChoice(name="multi_label_classification", labels_column=named)
    run_validation(artifacts, objective=choice)
    assert good_rows(artifacts) == [i for i in range(6) if i not in bad]
    found = quarantine_reasons(artifacts)
    assert {number for split, number in found if split == "train"} == bad
    assert any(reason in one for reasons in found.values() for one in reasons)
    kept = SplitRows(artifacts.rows / "train")
    compared = ComparedColumns.of(kept, objectives.build_objective(choice), [])
    assert compared.labelled == [*columns]
    counts = {name: sum(own.values()) for name, own in scanned(kept, compared).labels.items()}
    assert counts == {"lists": {"labels": 4}, "cats": {"cats": 4}}.get(form, {"a": 3, "b": 3})


def test_label_that_the_train_split_lacks_is_named(tmp_path):
    splits = topics(topics=[["a"]] * 6) | {"test": {"text": ["two"], "topics": [["a", "new"]]}}
    with pytest.raises(DataError, match="new"):
        run_validation(write_raw(tmp_path, **splits), objective=TOPICS)


def test_a_label_with_white_space_is_another_one_where_the_objective_learns_it_as_another_one(tmp_path):
    splits = topics(topics=[["a"]] * 6) | {"test": {"text": ["two", "three"], "topics": [["a "], ["a"]]}}
    artifacts = write_raw(tmp_path, dealt=["validation", "test"], **splits)
    run_validation(artifacts, objective=TOPICS)
    assert good_rows(artifacts, "test", "text") == ["three"]


def test_references_of_a_reward_may_be_blank(tmp_path):
    rows = {"prompt": TEXTS, "answer": ["7", "", " ", "8", None, "9"]}
    held_out = {split: {"prompt": [split], "answer": [""]} for split in ("validation", "test")}
    for name in ("grpo", "iterative_sft"):
        artifacts = write_raw(tmp_path / name, train=rows, **held_out)
        run_validation(artifacts, objective=ObjectiveChoice(name=name, rewards=["trainer.rewards:numeric_answer"]))
        assert good_rows(artifacts, "train", "answer") == ["7", "", " ", "8", "9"]


def test_what_is_no_number_is_set_aside(tmp_path):
    pair = {"first": TEXTS, "second": TEXTS[::-1]}
    one = {"first": ["a"], "second": ["b"], "similarity": [1.0]}
    artifacts = write_raw(
        tmp_path,
        train={**pair, "similarity": [0.5, math.nan, math.inf, None, -math.inf, 1.0]},
        validation=one,
        test={**one, "first": ["c"]},
    )
    run_validation(artifacts, objective=SIMILARITY)
    assert good_rows(artifacts) == [0, 5]


def test_texts_are_the_numbers_that_they_say_and_others_are_set_aside_with_what_they_say(tmp_path):
    said = ["0.5", "1,5", " 1e-3 ", "n/a", "-.25", "nan", "1e999", "", None, "+2."]
    texts = [f"text {i}" for i in range(len(said))]
    one = {"first": ["a"], "second": ["b"], "similarity": ["1"]}
    rows = {"first": texts, "second": texts, "similarity": said}
    artifacts = write_raw(tmp_path, train=rows, validation=one, test={**one, "first": ["c"]})
    bounded = Expectation(type="expect_column_values_to_be_between", column="similarity", min_value=0)
    report = run_validation(artifacts, bounded, objective=SIMILARITY)
    assert good_rows(artifacts) == [0, 2, 9]
    assert good_rows(artifacts, column="similarity") == [0.5, 0.001, 2.0]
    reasons = {row: own for (split, row), own in quarantine_reasons(artifacts).items() if split == "train"}
    for row in (1, 3, 5):
        (reason,) = reasons[row]
        assert reason.startswith(f"value_is_a_number(column='similarity'): {said[row]!r} is no number")
    assert all("to_be_between" in reasons[row][0] for row in (4, 6))
    assert all("to_not_be_null" in reasons[row][0] for row in (7, 8))
    kept = pq.read_table(artifacts.validated / "quarantine.parquet").to_pylist()
    assert [row["similarity"] for row in kept] == [said[row["row_id"]] for row in kept]
    assert "1,5" in (artifacts.validated / "report.html").read_text()
    (check,) = (check for check in report.checks if check.type == "value_is_a_number")
    assert (check.unexpected_count, check.examples[0].row_id) == (3, 1)


def test_a_file_whose_numbers_are_texts_says_the_same_as_one_of_numbers(tmp_path):
    pair = {"first": TEXTS, "second": TEXTS[::-1]}
    columns = []
    for name, values in (("a", [0.5, 1.0, 2.0, 3.0, 4.0, 4.5]), ("b", ["0.5", "1.0", "2", "3.0", "4.", "4.50"])):
        one = {"first": ["a"], "second": ["b"], "similarity": values[:1]}
        artifacts = write_raw(
            tmp_path / name, train={**pair, "similarity": values}, validation=one, test={**one, "first": ["c"]}
        )
        run_validation(artifacts, objective=SIMILARITY)
        columns.append(SplitRows(artifacts.rows / "train").table(["similarity"]))
    assert columns[0].equals(columns[1])


@pytest.mark.parametrize(
    ("choice", "column", "values", "must"),
    [
        (TOPICS, "topics", ["a"] * 6, "must hold lists of text or integers"),
        (TOPICS, "topics", [[0.5]] * 6, "must hold lists of text or integers"),
        (SIMILARITY, "similarity", [True, False] * 3, "must hold numbers, but holds bool"),
        (SIMILARITY, "similarity", ["high"] * 6, "8 rows: value_is_a_number.*row 0 of train: 'high' is no number"),
    ],
)
def test_column_of_another_type_is_refused(tmp_path, choice, column, values, must):
    rows = {"text": TEXTS, "first": TEXTS, "second": TEXTS, column: values}
    one = {name: values[:1] for name, values in rows.items()}
    with pytest.raises(DataError, match=f"(?s){must}"):
        run_validation(write_raw(tmp_path, train=rows, validation=one, test=one), objective=choice)


def test_drift_compares_labels_of_lists_and_learned_numbers(tmp_path):
    artifacts = write_raw(tmp_path / "a", **topics(topics=[["a", "b"], [], ["a"], ["a"], ["b"], ["a"]]))
    rows = SplitRows(artifacts.raw / "train")
    columns = ComparedColumns.of(rows, objectives.build_objective(TOPICS), [])
    assert columns.labelled == ["topics"]
    assert sum(scanned(rows, columns).labels["topics"].values()) == 7  # two of them in one row, and one row without any
    pair = {"first": TEXTS, "second": TEXTS, "similarity": [0.1, 0.2, 0.3, 0.4, 0.5, 0.5]}
    one = {name: values[:1] for name, values in pair.items()}
    rows = SplitRows(write_raw(tmp_path / "b", train=pair, validation=one, test=one).raw / "train")
    columns = ComparedColumns.of(rows, objectives.build_objective(SIMILARITY), [])
    assert (columns.texts, columns.numbers) == (("first", "second"), ("similarity",))
    assert columns.content == ["first", "second", "similarity"]
    smallest = scanned(rows, columns).smallest
    assert sorted(sampled(rows, columns, smallest.row_ids).numbers["similarity"]) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.5]


def test_columns_of_a_template_may_be_blank_but_not_all_of_them(tmp_path):
    train = {"ask": ["a", "b", None, " ", "e", "f"], "input": ["x", None, "y", "", "", "z"], "answer": TEXTS}
    held_out = {"ask": ["one"], "input": [None], "answer": ["two"]}
    artifacts = write_raw(tmp_path, train=train, validation=held_out, test={**held_out, "ask": ["three"]})
    choice = ObjectiveChoice(name="sft", prompt_column="{ask}\n{input}", completion_column="answer")
    run_validation(artifacts, objective=choice)
    assert good_rows(artifacts) == [0, 1, 2, 4, 5]
    assert any("none of ask and input has text" in reason for reason in quarantine_reasons(artifacts)["train", 3])
    wrong = ObjectiveChoice(name="sft", prompt_column="{ask}\n{inputt}", completion_column="answer")
    with pytest.raises(DataError, match="there is no column `inputt`"):
        run_validation(artifacts, objective=wrong)

"""Lists of labels and numbers: what is no such thing is set aside, and what the train split lacks fails the stage."""

from __future__ import annotations

import math

import pytest

from params import DataError
from params.schema import ObjectiveChoice
from tasks.drift.rows import ComparedColumns
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
    one = {"prompt": ["one"], "answer": [""]}
    for name in ("grpo", "iterative_sft"):
        artifacts = write_raw(tmp_path / name, train=rows, validation=one, test=one)
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


@pytest.mark.parametrize(
    ("choice", "column", "values", "must"),
    [
        (TOPICS, "topics", ["a"] * 6, "must hold lists of text or integers"),
        (TOPICS, "topics", [[0.5]] * 6, "must hold lists of text or integers"),
        (SIMILARITY, "similarity", ["high"] * 6, "must hold numbers"),
    ],
)
def test_column_of_another_type_is_refused(tmp_path, choice, column, values, must):
    rows = {"text": TEXTS, "first": TEXTS, "second": TEXTS, column: values}
    one = {name: values[:1] for name, values in rows.items()}
    with pytest.raises(DataError, match=must):
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

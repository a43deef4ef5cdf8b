"""Labels: which rows of them are set aside, what ends the stage, and what is only said."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from params import DataError
from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice
from tasks.validation.report import ValidationReport
from tests.support.validation import good_rows, quarantine_reasons, run_validation, write_raw

CLASSES, SPANS = ObjectiveChoice(name="sequence_classification"), ObjectiveChoice(name="token_classification")
OBJECTIVES = [pytest.param(CLASSES, id="classes"), pytest.param(SPANS, id="spans")]
USUAL = ["a", "b"] * 20


def split(objective: ObjectiveChoice, labels: list[Any], word: str) -> dict[str, list[Any]]:
    """Rows with these labels, of classes or of a span that is the first word."""
    texts = [f"{word} {i}" for i in range(len(labels))]
    if objective is CLASSES:
        return {"text": texts, "label": labels}
    return {"text": texts, "spans": [[{"label": label, "start": 0, "end": 3}] for label in labels]}


def validated(
    root: Any,
    objective: ObjectiveChoice,
    train: list[Any],
    test: list[Any],
    *,
    limit: float = 0.0,
    dealt: Sequence[str] = ("validation", "test"),
) -> tuple[Artifacts, ValidationReport]:
    parts = {"train": train, "validation": ["a", "b"], "test": test}
    splits = {name: split(objective, labels, name) for name, labels in parts.items()}
    artifacts = write_raw(root, dealt=dealt, **splits)
    return artifacts, run_validation(artifacts, objective=objective, max_quarantined=limit)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("count", [1, 4])
def test_few_rows_of_a_label_that_training_lacks_are_set_aside(tmp_path, caplog, objective, count):
    artifacts, report = validated(tmp_path, objective, USUAL, ["a", *["rare"] * count, "b"])
    assert good_rows(artifacts, "test", "text") == ["test 0", f"test {count + 1}"]
    assert (report.quarantined, report.share) == (count, 0.0)  # the limit, 0 here, is for bad rows
    reasons = quarantine_reasons(artifacts).values()
    assert {reason for own in reasons for reason in own} == {
        "row_is_known_to_training(): no training row has the label 'rare'"
    }
    assert f"validate: no training row has a label of test: 'rare' ({count} rows)" in caplog.messages


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("dealt", [(), ("validation",)])
def test_a_test_file_with_a_label_that_training_lacks_is_an_error(tmp_path, objective, dealt):
    """No hash has held its rows out: to leave some out of somebody's test would make it another one."""
    with pytest.raises(DataError) as caught:
        validated(tmp_path, objective, USUAL, ["a", "rare", "b"], limit=0.9, dealt=dealt)
    assert caught.value.what == "no training row has a label of test: 'rare' (1 rows)"
    assert caught.value.fix.startswith("add training rows with these labels, or take the rows with them out of")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_label_that_vanished_from_training_is_one_sentence(tmp_path, objective):
    with pytest.raises(DataError) as caught:
        validated(tmp_path, objective, USUAL, ["a", *["gone"] * 5, "b", "rare"], limit=0.9)
    assert caught.value.what == "no training row has labels of test: 'gone' (5 rows), 'rare' (1 rows)"
    assert caught.value.fix.startswith("add training rows with these labels, or take the rows with them out of")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rows_of_a_label_are_counted_whatever_white_space_is_around_it(tmp_path, objective):
    with pytest.raises(DataError) as caught:
        validated(tmp_path, objective, USUAL, ["a", *["gone", "gone "] * 3, "b"], limit=0.9)
    assert caught.value.what == "no training row has a label of test: 'gone' (6 rows)"


def test_a_known_label_is_not_said_to_be_lacking_for_its_white_space(tmp_path, caplog):
    spans = [[{"label": "a ", "start": 0, "end": 2}, {"label": "rare", "start": 3, "end": 4}]] * 2
    test = {"text": ["test 0", "test 1", *(f"test {i}" for i in range(2, 7))]}
    test["spans"] = [*spans, *[[{"label": "a ", "start": 0, "end": 2}]] * 5]
    parts = {"train": split(SPANS, USUAL, "train"), "validation": split(SPANS, ["a", "b"], "one"), "test": test}
    run_validation(write_raw(tmp_path, dealt=["test"], **parts), objective=SPANS, max_quarantined=0.0)
    assert "validate: no training row has a label of test: 'rare' (2 rows)" in caplog.messages


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_most_of_the_rare_labels_do_not_lack_in_training_by_chance(tmp_path, objective):
    test = ["a", *[f"gone{i}" for i in range(8)] * 4, "b"]
    with pytest.raises(DataError, match=r"no training row has labels of test: 'gone0' \(4 rows\), "):
        validated(tmp_path, objective, USUAL, test, limit=0.9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_some_of_many_rare_labels_are_set_aside(tmp_path, objective):
    rare = [f"rare{i}" for i in range(20)]
    artifacts, report = validated(tmp_path, objective, [*USUAL, *rare[:12]], ["a", *rare[12:], "b"])
    assert (report.quarantined, len(good_rows(artifacts, "test"))) == (8, 2)


def test_blank_labels_are_set_aside_and_are_no_class(tmp_path):
    artifacts, report = validated(tmp_path, CLASSES, [*USUAL, "", " "], ["a", "", "b"], limit=0.1)
    assert (report.quarantined, good_rows(artifacts, "test", "label")) == (3, ["a", "b"])
    assert set(good_rows(artifacts, "train", "label")) == {"a", "b"}
    assert all("match_regex" in own[0] and len(own) == 1 for own in quarantine_reasons(artifacts).values())


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a "], "the labels 'a' (23 rows) and 'a ' (1 rows) look alike, and are learned as one"),
        (["A", "A"], "the labels 'A' (2 rows) and 'a' (23 rows) look alike, and are learned as several: write them"),
        (["\u0430"], None),  # a Cyrillic letter
        (["x\u0301", "x\u0301", "X\u0301"], "the labels 'X\u0301' (1 rows) and 'x\u0301' (2 rows) look alike"),
        (
            ["1", "1.0", "3.1", "3.10"],
            "the labels '1' (1 rows) and '1.0' (1 rows) look alike, and are learned as several",
        ),
        (["\uff42"], "the labels 'b' (23 rows) and '\uff42' (1 rows) look alike, and are learned as several"),
    ],
)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_labels_that_look_alike_are_said(tmp_path, caplog, objective, labels, said):
    _, report = validated(tmp_path, objective, [*USUAL, *labels], ["a", "b"] * 2)
    found = [check.observed for check in report.checks if check.type == "labels_do_not_look_alike"]
    assert len(found) == bool(said)
    if said:
        assert found[0].startswith(said)
        assert f"validate: {found[0]}" in caplog.messages


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_held_out_split_that_lacks_half_of_the_labels_is_said(tmp_path, caplog, objective):
    caplog.set_level(logging.WARNING)
    validated(tmp_path, objective, ["a", "b", "c", "d"] * 5, ["a", "b", "c"])
    assert caplog.messages == ["validate: validation has none of 2 of 4 labels, and says nothing about them: 'c', 'd'"]


def test_training_rows_with_one_label_only_are_refused(tmp_path):
    """Before tokens are made and a training starts."""
    with pytest.raises(DataError, match="every row of the train split has the label 'a', so there is nothing to learn"):
        validated(tmp_path, CLASSES, ["a", "a "] * 20, ["a", "b"], limit=0.9)
    validated(tmp_path, SPANS, ["a"] * 20, ["a"], limit=0.9)  # beside words without a label

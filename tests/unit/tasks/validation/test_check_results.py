"""Rows that the objective rejects are quarantined, counted and shown like rows that fail an expectation."""

from __future__ import annotations

import pytest

from params import DataError
from params.schema import ObjectiveChoice
from tests.support.validation import UNIQUE, good_rows, quarantine_reasons, run_validation, write_raw

TAGS = ObjectiveChoice(name="token_classification")
USABLE, KNOWN = "row_is_usable", "row_is_known_to_training"


def span(start, end, label="date"):
    return {"label": label, "start": start, "end": end}


def rows(*spans, text="see you on Friday at eight"):
    return {"text": [f"{text} {i}" for i in range(len(spans))], "spans": list(spans)}


HELD_OUT = {"validation": rows([span(11, 17)], text="see you on Monday"), "test": rows([], text="see you again")}
INVALID_SPANS = {
    "outside": ([span(11, 99)], "from 11 to 99 is not in the text, which has 28 characters"),
    "negative": ([span(-1, 4)], "from -1 to 4 is not in the text"),
    "backwards": ([span(17, 11)], "from 17 to 11 is not in the text"),
    "empty": ([span(11, 11)], "from 11 to 11 there is no text"),
    "space only": ([span(10, 11)], "from 10 to 11 there is no text"),
    "no end": ([span(11, None)], "has no end"),
    "no label": ([span(11, 17, None)], "has no label"),
    "empty label": ([span(11, 17, " ")], "its label is empty"),
    "half a character": ([span(11, 16.5)], "must be integers, and are 11 and 16.5"),
    "null": ([None], "has no label and no start and no end"),
    "overlapping": ([span(14, 20, "time"), span(11, 17)], "'time' from 14 to 20 overlaps the span before it"),
}


@pytest.mark.parametrize(("spans", "reason_part"), INVALID_SPANS.values(), ids=INVALID_SPANS)
def test_unusable_row_is_quarantined_with_the_reason(tmp_path, spans, reason_part):
    artifacts = write_raw(tmp_path, train=rows([span(11, 17)], spans, [span(0, 3), span(3, 7)]), **HELD_OUT)
    report = run_validation(artifacts, objective=TAGS)
    assert good_rows(artifacts) == [0, 2]
    (reason,) = quarantine_reasons(artifacts)["train", 1]
    assert reason.startswith(f"{USABLE}(): ")
    assert reason_part in reason
    (found,) = [c for c in report.checks if c.type == USABLE]
    assert (found.success, found.unexpected_count, found.on_failure, found.origin) == (
        False,
        1,
        "quarantine",
        "objective",
    )
    assert reason_part in found.examples[0].value
    assert reason_part in (artifacts.validated / "report.html").read_text().replace("&#39;", "'")
    assert (report.quarantined, report.rows_out["train"]) == (1, 2)


def test_too_many_unusable_rows_are_an_error(tmp_path):
    artifacts = write_raw(tmp_path, train=rows([span(11, 17)], [span(9, 9)], [span(5, 5)]), **HELD_OUT)
    with pytest.raises(DataError, match=r"2 of 5 rows \(40.0%\) would be set aside") as caught:
        run_validation(artifacts, objective=TAGS, max_quarantined=0.2)
    assert f"2 rows: {USABLE}(); row 1 of train: span 0: from 9 to 9 there is no text" in caught.value.what


def test_objective_checks_only_rows_with_valid_columns(tmp_path):
    train = rows([span(11, 17)], [span(1, 1)], [span(1, 1)])
    train["text"] = [train["text"][0], None, " "]
    report = run_validation(write_raw(tmp_path, train=train, **HELD_OUT), objective=TAGS)
    assert report.quarantined == 2
    assert [c.success for c in report.checks if c.type == USABLE] == [True]


def test_good_row_does_not_repeat_an_unusable_row(tmp_path):
    train = rows([span(11, 11)], [span(11, 17)])
    train["text"] = ["see you on Friday"] * 2
    artifacts = write_raw(tmp_path, train=train, **HELD_OUT)
    run_validation(artifacts, UNIQUE, objective=TAGS)
    assert good_rows(artifacts) == [1]


def test_a_row_without_spans_is_a_text_without_any(tmp_path, caplog):
    train = rows([span(11, 17)], None, [], None)
    artifacts = write_raw(tmp_path, train=train, **HELD_OUT)
    report = run_validation(artifacts, objective=TAGS, max_quarantined=0.0)
    assert (report.quarantined, good_rows(artifacts)) == (0, [0, 1, 2, 3])
    assert "validate: rows without `spans`, which are kept: 2" in caplog.messages


def test_span_label_missing_from_training_is_said(tmp_path):
    train = rows([span(11, 17)], [span(11, 17), span(21, 99, "time")])  # the only training row with a time is unusable
    several = rows(*[[span(21, 26, "time")]] * 5, [span(11, 17)], text="see you on Sunday at seven")
    artifacts = write_raw(tmp_path, train=train, validation=HELD_OUT["validation"], test=several)
    with pytest.raises(DataError) as caught:
        run_validation(artifacts, objective=TAGS)
    assert caught.value.what == "no training row has a label of test: 'time' (5 rows)"
    report = run_validation(write_raw(tmp_path, train=train, **HELD_OUT), objective=TAGS)
    assert [c.success for c in report.checks if c.type == KNOWN] == [True]

"""Answers as text for a terminal."""

from __future__ import annotations

from tasks.inference.answer import ModelAnswer, PredictedLabel, PredictedNumber, PredictedSpan

SPANS = (PredictedSpan("who", 4, 8, "king", 0.9), PredictedSpan("when", 12, 15, "now", 0.5))


def test_classes_are_a_table():
    answer = ModelAnswer("x", labels=[PredictedLabel("a long name", 0.75), PredictedLabel("b", 0.25)], note="cut")
    assert answer.lines() == ["a long name  0.750", "b            0.250", "note: cut"]
    assert answer.said == "a long name"


def test_spans_are_marked_and_listed():
    answer = ModelAnswer("The king is now", spans=SPANS)
    assert answer.lines() == [
        "The [king](who) is [now](when)",
        "who: 4 to 8, 'king', 0.900",
        "when: 12 to 15, 'now', 0.500",
    ]
    assert list(answer.pieces()) == [("The ", ""), ("king", "who"), (" is ", ""), ("now", "when")]
    assert ModelAnswer("The\nend", spans=()).lines() == ["The", "end", "no spans"]


def test_numbers_are_the_same_up_to_rounding():
    answer, near, other = (
        ModelAnswer("x", numbers=[PredictedNumber("price", v)]) for v in (1234567.8, 1234567.9, 1234.5)
    )
    assert answer.lines() == ["price  1,234,568"]
    assert other.lines() == ["price  1234.5"]
    assert answer.said == near.said != other.said


def test_answers_are_the_same_if_they_say_the_same():
    surer = [PredictedSpan(one.label, one.start, one.end, one.text, 1.0) for one in SPANS]
    assert ModelAnswer("The king is now", spans=surer).said == ModelAnswer("The king is now", spans=SPANS).said
    assert ModelAnswer("The king is now", spans=surer[:1]).said != ModelAnswer("The king is now", spans=SPANS).said
    likeliest = [PredictedLabel("a", 0.7), PredictedLabel("b", 0.4)]
    both, one, none = (ModelAnswer("x", labels=likeliest, predicted=own).said for own in (["a", "b"], ["a"], []))
    assert both != one != none != both, "of several labels, those that are predicted"
    assert ModelAnswer("x", generated="a").said != ModelAnswer("x", generated="b").said


def test_nothing_steers_the_terminal():
    assert ModelAnswer("x", generated="a\x1b[31mb\nc\u202e").lines() == ["a\ufffd[31mb", "c\ufffd"]
    assert ModelAnswer("x", generated="").lines() == ["(no text)"]

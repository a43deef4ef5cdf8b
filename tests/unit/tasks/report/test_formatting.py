"""Numbers, intervals and texts of the report."""

from __future__ import annotations

import pytest

from tasks.report.formatting import (
    MINUS,
    MISSING,
    duration,
    gain_class,
    interval,
    number,
    percent,
    plural,
    signed_gain,
    truncate,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.92134, "0.921"),
        (1.3254, "1.325"),
        (23.456, "23.46"),
        (4321.5, "4,322"),
        (3080, "3,080"),
        (0, "0"),
        (0.0, "0"),
        (0.0123, "0.012"),
        (100.04, "100.0"),
        (-0.5, f"{MINUS}0.500"),
        (0.00012, "1.20e-04"),
        (1e300, "1.00e+300"),
        (float("nan"), MISSING),
        (float("inf"), MISSING),
        (None, MISSING),
        ("text", MISSING),
        (True, MISSING),
    ],
)
def test_number(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("ends", "shown"),
    [
        ((0.9112, 0.9304), "0.911 to 0.930"),
        ((-0.05, 0.09), f"{MINUS}0.05 to 0.09"),
        ((0.5, 0.5), "0.500 to 0.500"),
        ((1000.0, 2500.0), "1,000 to 2,500"),
        ((None, 0.5), ""),
        ((float("nan"), 0.5), ""),
    ],
)
def test_interval(ends, shown):
    assert interval(*ends) == shown


def test_signed_gain_has_the_digits_of_its_interval():
    assert signed_gain(0.01234, 0.003, 0.021) == "+0.012"
    assert signed_gain(-0.01234, -0.2, 0.1) == f"{MINUS}0.01"
    assert signed_gain(-0.001, -0.2, 0.1) == "0.00"
    assert signed_gain(0.01234) == "+0.012"
    assert signed_gain(0.0) == "0.000"
    assert signed_gain(None) == MISSING


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.41, "0.4 s"),
        (41.4, "41 s"),
        (60, "1 min"),
        (200.4, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (None, MISSING),
        (59.99, "60 s"),
    ],
)
def test_duration(value, shown):
    assert duration(value) == shown


def test_percent_plural_and_truncate():
    assert percent(0.01) == "1%"
    assert percent(2 / 300) == "0.667%"
    assert percent(None) == MISSING
    assert plural(1, "row") == "1 row"
    assert plural(3080, "row") == "3,080 rows"
    assert truncate("ab\x00\ncd", 4) == "ab\\x00\n…"
    assert truncate("\ud800", 4) == "\\ud800"
    assert truncate(None, 4) == MISSING
    assert truncate([1, 2], 40) == "[1, 2]"


@pytest.mark.parametrize(
    ("low", "high", "css_class"),
    [(0.1, 0.2, "better"), (-0.2, -0.1, "worse"), (-0.1, 0.1, "undecided"), (None, None, "undecided")],
)
def test_gain_class(low, high, css_class):
    assert gain_class(low, high) == css_class

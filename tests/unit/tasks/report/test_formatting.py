"""Numbers, intervals and texts of the report."""

from __future__ import annotations

import pytest

from tasks.report.formatting import (
    MINUS,
    MISSING,
    duration,
    format_money,
    gain_class,
    interval,
    number,
    percent,
    plural,
    signed_gain,
    truncate,
)


@pytest.mark.parametrize(
    ("function", "arguments", "shown"),
    [
        (number, (0.92134,), "0.921"),
        (number, (1.3254,), "1.325"),
        (number, (23.456,), "23.46"),
        (number, (4321.5,), "4,322"),
        (number, (3080,), "3,080"),
        (number, (0,), "0"),
        (number, (0.0,), "0"),
        (number, (0.0123,), "0.012"),
        (number, (100.04,), "100.0"),
        (number, (-0.5,), f"{MINUS}0.500"),
        (number, (0.00012,), "1.20e-04"),
        (number, (1e300,), "1.00e+300"),
        *((number, (value,), MISSING) for value in (float("nan"), float("inf"), None, "text", True)),
        (format_money, (1204.5,), "1,204.50"),
        (format_money, (0.0178,), "0.0178"),
        (format_money, (0,), "0.00"),
        (format_money, (None,), MISSING),
        (interval, (0.9112, 0.9304), "0.911 to 0.930"),
        (interval, (-0.05, 0.09), f"{MINUS}0.05 to 0.09"),
        (interval, (0.5, 0.5), "0.500 to 0.500"),
        (interval, (1000.0, 2500.0), "1,000 to 2,500"),
        (interval, (None, 0.5), ""),
        (interval, (float("nan"), 0.5), ""),
        (signed_gain, (0.01234, 0.003, 0.021), "+0.012"),  # as many digits as the interval allows
        (signed_gain, (-0.01234, -0.2, 0.1), f"{MINUS}0.01"),
        (signed_gain, (-0.001, -0.2, 0.1), "0.00"),
        (signed_gain, (0.01234,), "+0.012"),
        (signed_gain, (0.0,), "0.000"),
        (signed_gain, (None,), MISSING),
        (duration, (0.41,), "0.4 s"),
        (duration, (41.4,), "41 s"),
        (duration, (60,), "1 min"),
        (duration, (200.4,), "3 min 20 s"),
        (duration, (7500,), "2 h 5 min"),
        (duration, (None,), MISSING),
        (duration, (59.99,), "60 s"),
        (percent, (0.01,), "1%"),
        (percent, (2 / 300,), "0.667%"),
        (percent, (None,), MISSING),
        (plural, (1, "row"), "1 row"),
        (plural, (3080, "row"), "3,080 rows"),
        (truncate, ("ab\x00\ncd", 4), "ab\\x00\n…"),
        (truncate, ("\ud800", 4), "\\ud800"),
        (truncate, (None, 4), MISSING),
        (truncate, ([1, 2], 40), "[1, 2]"),
        (gain_class, (0.1, 0.2), "better"),
        (gain_class, (-0.2, -0.1), "worse"),
        (gain_class, (-0.1, 0.1), "undecided"),
        (gain_class, (None, None), "undecided"),
    ],
)
def test_formatting(function, arguments, shown):
    assert function(*arguments) == shown

"""Numbers, intervals and texts of the report."""

from __future__ import annotations

import pytest

from tasks.report.formatting import (
    MINUS,
    MISSING,
    classify_gain,
    count_with_noun,
    format_duration,
    format_interval,
    format_money,
    format_number,
    format_percent,
    format_signed_gain,
    truncate_and_escape_invisible,
)


@pytest.mark.parametrize(
    ("function", "arguments", "shown"),
    [
        (format_number, (0.92134,), "0.921"),
        (format_number, (1.3254,), "1.325"),
        (format_number, (23.456,), "23.46"),
        (format_number, (4321.5,), "4,322"),
        (format_number, (3080,), "3,080"),
        (format_number, (0,), "0"),
        (format_number, (0.0,), "0"),
        (format_number, (0.0123,), "0.012"),
        (format_number, (100.04,), "100.0"),
        (format_number, (-0.5,), f"{MINUS}0.500"),
        (format_number, (0.00012,), "1.20e-04"),
        (format_number, (1e300,), "1.00e+300"),
        *((format_number, (value,), MISSING) for value in (float("nan"), float("inf"), None, "text", True)),
        (format_money, (1204.5,), "1,204.50"),
        (format_money, (0.0178,), "0.0178"),
        (format_money, (0,), "0.00"),
        (format_money, (None,), MISSING),
        (format_interval, (0.9112, 0.9304), "0.911 to 0.930"),
        (format_interval, (-0.05, 0.09), f"{MINUS}0.05 to 0.09"),
        (format_interval, (0.5, 0.5), "0.500 to 0.500"),
        (format_interval, (1000.0, 2500.0), "1,000 to 2,500"),
        (format_interval, (None, 0.5), ""),
        (format_interval, (float("nan"), 0.5), ""),
        (format_signed_gain, (0.01234, 0.003, 0.021), "+0.012"),  # as many digits as the interval allows
        (format_signed_gain, (-0.01234, -0.2, 0.1), f"{MINUS}0.01"),
        (format_signed_gain, (-0.001, -0.2, 0.1), "0.00"),
        (format_signed_gain, (0.01234,), "+0.012"),
        (format_signed_gain, (0.0,), "0.000"),
        (format_signed_gain, (None,), MISSING),
        (format_duration, (0.41,), "0.4 s"),
        (format_duration, (41.4,), "41 s"),
        (format_duration, (60,), "1 min"),
        (format_duration, (200.4,), "3 min 20 s"),
        (format_duration, (7500,), "2 h 5 min"),
        (format_duration, (None,), MISSING),
        (format_duration, (59.99,), "60 s"),
        (format_percent, (0.01,), "1%"),
        (format_percent, (2 / 300,), "0.667%"),
        (format_percent, (None,), MISSING),
        (count_with_noun, (1, "row"), "1 row"),
        (count_with_noun, (3080, "row"), "3,080 rows"),
        (truncate_and_escape_invisible, ("ab\x00\ncd", 4), "ab\\x00\n…"),
        (truncate_and_escape_invisible, ("\ud800", 4), "\\ud800"),
        (truncate_and_escape_invisible, (None, 4), MISSING),
        (truncate_and_escape_invisible, ([1, 2], 40), "[1, 2]"),
        (classify_gain, (0.1, 0.2), "better"),
        (classify_gain, (-0.2, -0.1), "worse"),
        (classify_gain, (-0.1, 0.1), "undecided"),
        (classify_gain, (None, None), "undecided"),
    ],
)
def test_formatting(function, arguments, shown):
    assert function(*arguments) == shown

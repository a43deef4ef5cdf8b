"""No text of a row is a formula in a spreadsheet, whatever that takes for the end of a cell."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.measurements.label_review.review_table import review_csv
from tasks.measurements.label_review.suspects import Suspect
from tasks.validation.spreadsheet_cells import guard_cell, read_guarded_cell

TEXT = st.text(st.sampled_from("ab1 =+-@;,\t|\n\r'\"\v\ufeff\u200b\uff1d\u2028"), max_size=20)
INVISIBLE = '\\s\ufeff\u200b"'


def formulas(table: str, separator: str) -> list[str]:
    """Cells that a spreadsheet with this separator computes, with quotes as in CSV and with a line end that ends every cell."""
    cells = [cell for row in csv.reader(io.StringIO(table, newline=""), delimiter=separator) for cell in row]
    for line in re.split(r"[\r\n]", table):
        cells += re.split(f"[{re.escape(separator)}]", line)
    found = [re.sub(f"^[{INVISIBLE}]+", "", cell) for cell in cells]
    return [cell for cell in found if re.match(r"[=+\-@\uff1d]", cell) and not re.fullmatch(r"[-+]?[\d.]+\s*", cell)]


@given(TEXT, TEXT, TEXT)
@example("good;=cmd|' /C calc'!A0;", "good\t=1+1", 'a;"=x"')
@example(" =1+1", "a\n=1+1", "\ufeff=1")
@example("a", ";-1", "a")
@example("a", "-1;", "-1\t")
def test_no_separator_makes_a_formula(text: str, label: str, other: str) -> None:
    suspect = Suspect("train", 1, label, "b", 0.9, -0.9)
    table = review_csv([suspect], {1: text}, {other: {1: [text, label]}}).removeprefix("\ufeff")
    for separator in ";\t|":
        assert formulas(table, separator) == []
    (_, row) = csv.reader(io.StringIO(table, newline=""))
    assert [
        cell for cell in row if re.match(r"[=+\-@\uff1d\t\r\n]", cell) and not re.fullmatch(r"[-+]?\d+\s*", cell)
    ] == []


@given(TEXT)
def test_what_was_written_can_be_read_back(text: str) -> None:
    assert read_guarded_cell(guard_cell(text)) == text


@pytest.mark.parametrize(
    "text", ["good", "a; b", "-5", "+2.5", "1;5;2.5", "a | b", "e-mail me@example.org", "it's", "[-1]", "a, -b"]
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert guard_cell(text) == text

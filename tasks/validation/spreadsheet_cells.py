"""Texts in CSV files that people open with a spreadsheet: none is taken for a formula, and what was written can be read back.

A text that begins as a formula does gets an apostrophe before it (OWASP, CSV Injection,
https://owasp.org/www-community/attacks/CSV_Injection). A spreadsheet may split lines elsewhere than at commas: Excel takes the list separator of
its language, LibreOffice what its user ticks, and neither takes a quote within a cell for one. So what follows a separator or a line end
within a text counts as a cell, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_BORDER: Final = re.compile("([;\t|\r\n\v\f\x1c-\x1e\x85\u2028\u2029])")
"""What may end a cell within a text."""
_FORMULA: Final = re.compile("[\\s\"'\u00ad\u200b-\u200f\u2060\ufeff]*[=+\\-@\uff1d\uff0b\uff0d\uff20]")
"""What a cell begins with that some spreadsheet takes for a formula, after spaces, quotes and invisible characters; the last four are wide forms."""
_NUMBER: Final = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)\s*")
_SPACE: Final = re.compile("'*[\t\r\n]")
"""What a spreadsheet may cut off from the beginning of a cell."""
_MARK: Final = "'"


def guard_cell(text: str) -> str:
    """Return a text with an apostrophe before whatever a spreadsheet could take for a formula."""
    mark = _MARK if _SPACE.match(text) else ""
    parts = _BORDER.split(text)
    return mark + "".join(_MARK + part if _is_formula(part, parts) else part for part in parts)


def read_guarded_cell(cell: str) -> str:
    """Return the text that `guard_cell` made this of."""
    if cell.startswith(_MARK) and _SPACE.match(cell[1:]):
        cell = cell[1:]
    parts = _BORDER.split(cell)
    return "".join(part[1:] if part.startswith(_MARK) and _is_formula(part[1:], parts) else part for part in parts)


def _is_formula(part: str, parts: Sequence[str]) -> bool:
    """Whether a part of a text may be taken for a formula; a number is none if it is the whole text, so that nothing can follow it in its cell."""
    is_number = len(parts) == 1 and _NUMBER.fullmatch(part)
    return bool(_FORMULA.match(part)) and not is_number

"""review.csv: the rows whose labels people should look at, for any spreadsheet, with all else that a row has, by which people find it.

`data.corrections` reads it with its column `corrected_label` filled in.

What a spreadsheet would take for a formula has an apostrophe before it (`tasks.validation.spreadsheet_cells`). The mark at the
beginning says UTF-8, which Excel would not guess.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tasks.measurements.label_review.suspects import Suspect
from tasks.validation.spreadsheet_cells import guard_cell

COLUMNS: Final = (
    *("split", "row_id", "text", "given_label", "suggested_label", "confidence"),
    *("why", "row_hash", "corrected_label"),
)
_MAX_TEXT: Final = 2000


def quote_text(text: str) -> str:
    """Return a text; of a long one its beginning, and how long it is."""
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ... ({len(text):,} characters)"


def review_csv(
    suspects: Sequence[Suspect],
    texts: Mapping[int, str],
    others: Mapping[str, Mapping[int, Any]] | None = None,
    hashes: Mapping[int, str] | None = None,
) -> str:
    """Return the table, one line for each suspect; without any, it is the line of the columns. `hashes` are those of the rows but their labels.

    `others` are further columns by name, each with the value of a row by its `row_id`; one with the name of one of `COLUMNS` is `row.<name>`.
    """
    written, others = io.StringIO(newline=""), others or {}
    table = csv.writer(written)
    table.writerow([*COLUMNS, *(_cell(f"row.{name}" if name in COLUMNS else name) for name in others)])
    for one in suspects:
        cells = (texts[one.row_id], one.given, one.suggested)
        more = (_cell(column.get(one.row_id)) for column in others.values())
        sure = "" if math.isnan(one.confidence) else f"{one.confidence:.3f}"
        own = (sure, _cell(one.why), (hashes or {}).get(one.row_id, ""), "")
        table.writerow([one.split, one.row_id, *map(_cell, cells), *own, *more])
    return "\ufeff" + written.getvalue()


def _cell(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)
    return "" if value is None else guard_cell(quote_text(text))

"""The sections of the report page that quote rows: those with the largest errors, and those on which two models differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.report.formatting import number, one_line, plural, signed_gain, truncate
from tasks.report.run_results import RunResults

_MAX_ROWS = 100
_MAX_TEXT = 400


def worst_rows_section(results: RunResults) -> dict[str, Any] | None:
    """Return the rows with the largest errors."""
    worst = results.details.worst if results.details else []
    rows = [
        {
            "row": truncate(one.row_id, 40),
            "row_error": number(one.row_error),
            "notes": _notes(one.notes),
            "text": truncate(one.text, _MAX_TEXT),
        }
        for one in worst[:_MAX_ROWS]
    ]
    if not rows:
        return None
    lead = (
        f"The {plural(len(rows), 'row')} with the largest error, the largest first. Wrong labels are often among them."
    )
    return {"lead": lead, "rows": rows}


def changed_rows_section(results: RunResults) -> dict[str, Any] | None:
    """Return the rows on which candidate and champion differ most."""
    changed = results.details.changed if results.details else []
    rows = [
        {
            "row": truncate(one.row_id, 40),
            "gain": signed_gain(one.gain),
            "class": "better" if one.gain > 0 else "worse",
            "answers": [
                ("candidate", number(one.error), _notes(one.notes)),
                ("champion", number(one.champion_error), _notes(one.champion_notes)),
            ],
            "text": truncate(one.text, _MAX_TEXT),
        }
        for one in changed[:_MAX_ROWS]
    ]
    if not rows:
        return None
    better = sum(one.gain > 0 for one in changed[:_MAX_ROWS])
    lead = f"The {plural(len(rows), 'row')} whose error differs most between candidate and champion: the candidate does"
    return {"lead": f"{lead} better on {better} and worse on {len(rows) - better}.", "rows": rows}


def _notes(notes: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(one_line(name, 40), one_line(note, 160)) for name, note in list(notes.items())[:8]]

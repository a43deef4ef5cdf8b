"""Why validation sets a row aside for itself, said of one row in memory: for samples, before there are shards of rows.

The stage finds the same rows by columns, with Great Expectations, which tell of any number of rows what holds; a test compares both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from params.sections.rows import Expectation
from trainer import objectives
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import ColumnKind, Row

_TOLD_SHORTLY: Final = {
    "an answer is not where it says": "an answer is not where it says",
    " overlaps the span before it": "overlapping spans",
}
"""What is said of rows that differ only in words and places, by what it has in it."""


def _is_missing(value: Any) -> bool:
    return value is None or value != value  # noqa: PLR0124 - NaN is no number, and nothing else differs from itself


def _find_null(check: Expectation, value: Any) -> str | None:
    return f"no `{check.arguments['column']}`" if _is_missing(value) else None


def _find_blank(check: Expectation, value: Any) -> str | None:
    is_blank = not _is_missing(value) and not re.search(check.arguments["regex"], str(value))
    return f"an empty `{check.arguments['column']}`" if is_blank else None


def _find_infinite(check: Expectation, value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not _is_missing(value)
    if is_number and not check.arguments["min_value"] <= value <= check.arguments["max_value"]:
        return f"`{check.arguments['column']}` is infinite"
    return None


_CHECKS: Final[Mapping[str, Callable[[Expectation, Any], str | None]]] = {
    "expect_column_values_to_not_be_null": _find_null,
    "expect_column_values_to_match_regex": _find_blank,
    "expect_column_values_to_be_between": _find_infinite,
}
"""How the checks of columns that objectives have look at one value."""


class RowJudge:
    """What validation would say of rows, as an objective reads them."""

    def __init__(self, objective: Objective[Any]) -> None:
        self._objective = objective
        self._kinds: Mapping[str, ColumnKind] = objective.columns()
        labels = [column for column, kind in self._kinds.items() if kind == "label"]
        self._checks: dict[str, list[Expectation]] = {column: [] for column in self._kinds}
        for check in objective.expectations(labels):
            if check.on_failure == "quarantine" and check.type in _CHECKS:
                self._checks.setdefault(check.arguments["column"], []).append(check)

    def why_set_aside(self, row: Row) -> str | None:
        """Return why a row does not pass, without what differs between rows; None if it does."""
        for column, checks in self._checks.items():
            if self._kinds.get(column) == "number" and isinstance(row.get(column), str):
                return f"`{column}` is no number"
            for check in checks:
                if reason := _CHECKS[check.type](check, row.get(column)):
                    return reason
        reason = objectives.why_row_unusable(self._objective, row)
        return next((said for part, said in _TOLD_SHORTLY.items() if reason and part in reason), reason)

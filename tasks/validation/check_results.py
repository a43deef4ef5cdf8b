"""The results of all checks: which rows fail, which of them go to quarantine, and why."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from params.schema import Expectation
from tasks.validation.expectations import ExpectationResult, columns_of, run_expectations
from tasks.validation.raw_rows import RawRows
from tasks.validation.report import CheckReport, FailingRow, Origin, describe, shorten
from trainer.objectives.bases.objective import Objective, Row

if TYPE_CHECKING:
    import pandas as pd

_UNIQUENESS = ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique")
"""Expectations that flag every row of a group of equal rows, although one of them may stay."""
Check = tuple[Origin, Expectation]
"""An expectation and where it comes from."""
ROW_IS_USABLE = Expectation(type="row_is_usable")
"""The objective's check of a row as a whole; not an expectation of Great Expectations."""
ROW_IS_KNOWN = Expectation(type="row_is_known_to_training", on_failure="fail")
"""The objective's check of a row against the train split."""
MAX_EXAMPLES_IN_REPORT = 5
MAX_EXAMPLES_IN_ERROR = 10


@dataclass(frozen=True)
class CheckResult:
    """A check, and the rows that fail it."""

    expectation: Expectation
    origin: Origin
    result: ExpectationResult
    failing: Mapping[int, int | None] | None
    """Positions of the failing rows. The value is the position of the earlier row that a duplicate repeats, else None.
    The whole mapping is None for a check of the table as a whole."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """The objective's reasons by position, if it checked the rows itself."""

    @property
    def quarantines(self) -> bool:
        """Whether the failing rows go to quarantine."""
        return not self.result.success and self.expectation.on_failure == "quarantine" and self.failing is not None

    @property
    def rejects(self) -> bool:
        """Whether the failing rows go to quarantine or end the stage."""
        return not self.result.success and self.expectation.on_failure != "report"

    def report(self, rows: RawRows) -> CheckReport:
        """Return the check's entry in the report."""
        return CheckReport(
            type=self.expectation.type,
            arguments=self.expectation.arguments,
            on_failure=self.expectation.on_failure,
            origin=self.origin,
            success=self.result.success,
            unexpected_count=None if self.failing is None else len(self.failing),
            observed=self.result.observed,
            examples=[
                FailingRow(row_id=rows.ids[p], split=rows.split_names[p], value=self._value(rows, p))
                for p in list(self.failing or ())[:MAX_EXAMPLES_IN_REPORT]
            ],
        )

    def examples(self, rows: RawRows, limit: int = MAX_EXAMPLES_IN_ERROR) -> str:
        """Return the first failing rows with their values, for an error message."""
        if self.failing is None:
            return f"observed {shorten(self.result.observed, 200)}"
        first = [f"{rows.address(p)}: {self._value(rows, p)}" for p in list(self.failing)[:limit]]
        return "; ".join(first) + ("; …" if len(self.failing) > limit else "")

    def reason(self, rows: RawRows, position: int) -> str:
        """Return why the row at `position` fails."""
        if position in self.reasons:
            return f"{describe(self.expectation)}: {self.reasons[position]}"
        repeated = (self.failing or {})[position]
        duplicate = "" if repeated is None else f", repeats {rows.address(repeated)}"
        return describe(self.expectation) + duplicate

    def _value(self, rows: RawRows, position: int) -> str:
        if position in self.reasons:
            return self.reasons[position]
        values = rows.values(position, columns_of([self.expectation]))
        if len(values) == 1:
            return shorten(next(iter(values.values())), 80)
        return ", ".join(f"{column}={shorten(value, 40)}" for column, value in values.items())


def run_checks(
    checks: Sequence[Check], rows: RawRows, frame: pd.DataFrame, objective: Objective[Any] | None = None
) -> list[CheckResult]:
    """Run checks on all rows or on some of them.

    Of a group of equal rows, the first one stays. A row that another check sets aside does not count as the first, so
    that a good row is not set aside as the duplicate of a bad one. `frame` holds the rows to check. The objective, if
    there is one, checks every row that passes its own expectations.
    """
    found = run_expectations([expectation for _, expectation in checks], frame)
    results = []
    for (origin, expectation), result in zip(checks, found, strict=True):
        failing = None if result.rows is None else dict.fromkeys(result.rows)
        results.append(CheckResult(expectation, origin, result, failing))
    if objective is not None and type(objective).reject_reason is not Objective.reject_reason:
        failed = {position for r in results if r.origin == "objective" for position in r.failing or ()}
        results.append(check_each_row(ROW_IS_USABLE, rows, objective.reject_reason, skip=failed))
    quarantined = quarantined_rows([r for r in results if r.expectation.type not in _UNIQUENESS])
    for i, check_result in enumerate(results):
        if check_result.expectation.type in _UNIQUENESS:
            results[i] = replace(check_result, failing=_duplicates(check_result, rows, quarantined))
            quarantined |= quarantined_rows([results[i]])
    return results


def check_each_row(
    expectation: Expectation, rows: RawRows, reject_reason: Callable[[Row], str | None], *, skip: Container[int]
) -> CheckResult:
    """Check the rows one by one with a function of the objective.

    `reject_reason` returns what is wrong with a row, or None. Rows at the positions in `skip` are not checked.
    """
    reasons = {}
    for position, row in rows.each():
        if position not in skip and (reason := reject_reason(row)) is not None:
            reasons[position] = reason
    result = ExpectationResult(not reasons, list(reasons), None)
    return CheckResult(expectation, "objective", result, dict.fromkeys(reasons), reasons)


def quarantined_rows(results: Sequence[CheckResult]) -> set[int]:
    """Return the positions of the rows that go to quarantine."""
    return {position for result in results if result.quarantines for position in result.failing or ()}


def _duplicates(check: CheckResult, rows: RawRows, quarantined: set[int]) -> dict[int, int | None]:
    """Return each row after the first of its group of equal rows, with the position of that first row."""
    import pyarrow as pa

    order = sorted(check.result.rows or (), key=lambda position: (position in quarantined, position))
    columns = rows.table.select(columns_of([check.expectation]))
    first: dict[str, int] = {}
    found: dict[int, int | None] = {}
    for position, values in zip(order, columns.take(pa.array(order, pa.int64())).to_pylist(), strict=True):
        kept = first.setdefault(repr(values), position)  # repr, since lists and dicts cannot be keys
        if kept != position:
            found[position] = kept
    return dict(sorted(found.items()))

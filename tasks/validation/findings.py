"""From what a check found to which rows are at fault."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from params.schema import Expectation
from tasks.validation import checks
from tasks.validation.report import Check, Example, Origin, describe, shorten
from tasks.validation.rows import Rows
from trainer.objectives.bases.objective import Objective, Row

if TYPE_CHECKING:
    import pandas as pd

_UNIQUENESS = ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique")
"""Checks that flag every member of a group of equal rows, where one of them may stay."""
Demand = tuple[Origin, Expectation]
"""A check and who asks for it."""
USABLE = Expectation(type="row_is_usable")
"""No check of Great Expectations: what the objective says of a row as a whole."""
KNOWN = Expectation(type="row_is_known_to_training", on_failure="fail")
"""The same, of what only the train split can tell."""
EXAMPLES_KEPT = 5
EXAMPLES_TOLD = 10


@dataclass(frozen=True)
class Finding:
    """A check, and the rows that fail it."""

    expectation: Expectation
    origin: Origin
    outcome: checks.Outcome
    at_fault: Mapping[int, int | None] | None
    """Position of each failing row, to that of the row it repeats, if it is one that repeats another. None for a
    check of the table as a whole."""
    said: Mapping[int, str] = field(default_factory=dict)
    """What the objective says of a failing row, by position, where it looked at the row itself."""

    @property
    def sets_aside(self) -> bool:
        """Whether its rows go to quarantine."""
        return not self.outcome.success and self.expectation.on_failure == "quarantine" and self.at_fault is not None

    @property
    def condemns(self) -> bool:
        """Whether a failing row cannot be used: it goes to quarantine, or it ends the stage."""
        return not self.outcome.success and self.expectation.on_failure != "report"

    def check(self, rows: Rows) -> Check:
        """For the report."""
        return Check(
            type=self.expectation.type,
            arguments=self.expectation.arguments,
            on_failure=self.expectation.on_failure,
            origin=self.origin,
            success=self.outcome.success,
            unexpected_count=None if self.at_fault is None else len(self.at_fault),
            observed=self.outcome.observed,
            examples=[
                Example(row_id=rows.ids[p], split=rows.split_names[p], value=self._value(rows, p))
                for p in list(self.at_fault or ())[:EXAMPLES_KEPT]
            ],
        )

    def evidence(self, rows: Rows, limit: int = EXAMPLES_TOLD) -> str:
        """The first failing rows with their values, for an error."""
        if self.at_fault is None:
            return f"observed {shorten(self.outcome.observed, 200)}"
        first = [f"{rows.address(p)}: {self._value(rows, p)}" for p in list(self.at_fault)[:limit]]
        return "; ".join(first) + ("; …" if len(self.at_fault) > limit else "")

    def reason(self, rows: Rows, position: int) -> str:
        """Why the failing row at `position` fails."""
        if position in self.said:
            return f"{describe(self.expectation)}: {self.said[position]}"
        repeated = (self.at_fault or {})[position]
        again = "" if repeated is None else f", repeats {rows.address(repeated)}"
        return describe(self.expectation) + again

    def _value(self, rows: Rows, position: int) -> str:
        if position in self.said:
            return self.said[position]
        values = rows.values(position, checks.columns_named([self.expectation]))
        if len(values) == 1:
            return shorten(next(iter(values.values())), 80)
        return ", ".join(f"{column}={shorten(value, 40)}" for column, value in values.items())


def examine(
    demands: Sequence[Demand], rows: Rows, frame: pd.DataFrame, objective: Objective[Any] | None = None
) -> list[Finding]:
    """Run the expectations in `demands` on `frame`, which is `rows.frame` or some rows of it.

    `objective` then looks at the rows that meet its demands, one by one. Of equal rows the first is not at fault, except that one which another check sets aside is passed over: a good row
    must not give way to a bad one.
    """
    outcomes = checks.run([expectation for _, expectation in demands], frame)
    findings = []
    for (origin, expectation), outcome in zip(demands, outcomes, strict=True):
        at_fault = None if outcome.rows is None else dict.fromkeys(outcome.rows)
        findings.append(Finding(expectation, origin, outcome, at_fault))
    if objective is not None and type(objective).reject_reason is not Objective.reject_reason:
        broken = {position for f in findings if f.origin == "objective" for position in f.at_fault or ()}
        findings.append(look(USABLE, rows, objective.reject_reason, without=broken))
    aside = set_aside([f for f in findings if f.expectation.type not in _UNIQUENESS])
    for i, finding in enumerate(findings):
        if finding.expectation.type in _UNIQUENESS:
            findings[i] = replace(finding, at_fault=_repeats(finding, rows, aside))
            aside |= set_aside([findings[i]])
    return findings


def look(expectation: Expectation, rows: Rows, say: Callable[[Row], str | None], *, without: Container[int]) -> Finding:
    """Ask an objective about each row by itself.

    Args:
        expectation: what the rows should be, as it stands in the report.
        rows: all rows.
        say: what is wrong with a row, or None.
        without: positions of rows that are not asked about.
    """
    said = {}
    for position, row in rows.each():
        if position not in without and (reason := say(row)) is not None:
            said[position] = reason
    return Finding(expectation, "objective", checks.Outcome(not said, list(said), None), dict.fromkeys(said), said)


def set_aside(findings: Sequence[Finding]) -> set[int]:
    """Positions of the rows that go to quarantine."""
    return {position for finding in findings if finding.sets_aside for position in finding.at_fault or ()}


def _repeats(finding: Finding, rows: Rows, aside: set[int]) -> dict[int, int | None]:
    """Of the rows that GX flags, those after the first of their group, to that first one."""
    import pyarrow as pa

    order = sorted(finding.outcome.rows or (), key=lambda position: (position in aside, position))
    columns = rows.table.select(checks.columns_named([finding.expectation]))
    first: dict[str, int] = {}
    found: dict[int, int | None] = {}
    for position, values in zip(order, columns.take(pa.array(order, pa.int64())).to_pylist(), strict=True):
        keeper = first.setdefault(repr(values), position)  # repr, since lists and dicts cannot be keys
        if keeper != position:
            found[position] = keeper
    return dict(sorted(found.items()))

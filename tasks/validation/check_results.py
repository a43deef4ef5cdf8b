"""The results of all checks: which rows fail, which of them go to quarantine, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from params.sections.rows import Expectation
from tasks.validation.by_key import find_duplicate_rows, find_groups_across_splits, find_rows_across_splits
from tasks.validation.checks import (
    check_column_by_column,
    check_row_by_row,
    check_rows_with_objective,
    expectation_check_kind,
)
from tasks.validation.expectations import ExpectationResult, columns_named_by_expectations
from tasks.validation.raw_rows import NOTHING, Positions, RawRows, positions_in_range, union_of_positions
from tasks.validation.report import CheckReport, FailingRow, Origin, expectation_as_call, shorten_value
from trainer import objectives
from trainer.objectives.bases.objective import Objective, Row
from trainer.objectives.bases.row_content import without_outer_space

Check = tuple[Origin, Expectation]
"""An expectation and where it comes from."""
ROW_IS_USABLE = Expectation(type="row_is_usable")
"""The objective's check of a row as a whole; not an expectation of Great Expectations."""
MAX_EXAMPLES_IN_REPORT = 5
MAX_EXAMPLES_IN_ERROR = 10
_PAIRS = 20
"""Of how many equal rows it is looked at whether `data.group_by` would keep them together."""


@dataclass(frozen=True)
class CheckResult:
    """A check, and the rows that fail it."""

    origin: Origin
    expectation: Expectation
    found: ExpectationResult
    explain: Callable[[Row], str | None] | None = None
    """Returns the reason for a failing row, if it is not the expectation."""
    sentence: str = ""
    """What it found, for people; without it, its name and the first failing rows say it."""
    reads_said: bool = False
    """Whether `explain` gets a row with the texts that say numbers."""

    @property
    def failing(self) -> Positions:
        """Positions of the failing rows; none for a check of the table as a whole."""
        return NOTHING if self.found.failing is None else self.found.failing

    @property
    def quarantined(self) -> Positions:
        """Positions of the rows that go to quarantine."""
        return self.failing if not self.found.success and self.expectation.on_failure == "quarantine" else NOTHING

    @property
    def rejected(self) -> Positions:
        """Positions of the rows that go to quarantine or end the stage."""
        return self.failing if not self.found.success and self.expectation.on_failure != "report" else NOTHING

    @property
    def noted(self) -> str:
        """What a check found that does not end the stage, for people; empty if nothing, or if the page says it."""
        if self.found.success or self.origin == "recipe":
            return "" if self.found.success else self.sentence
        if self.expectation.on_failure == "report" and len(self.failing):
            return f"rows without `{self.expectation.arguments['column']}`, which are kept: {len(self.failing):,}"
        return self.sentence or (str(self.found.observed) if self.failing is NOTHING else "")

    def report(self, rows: RawRows) -> CheckReport:
        return CheckReport(
            type=self.expectation.type,
            arguments=self.expectation.arguments,
            on_failure=self.expectation.on_failure,
            origin=self.origin,
            success=self.found.success,
            unexpected_count=None if self.found.failing is None else len(self.failing),
            observed=self.found.observed,
            examples=self._first(rows, MAX_EXAMPLES_IN_REPORT),
        )

    def examples(self, rows: RawRows, limit: int = MAX_EXAMPLES_IN_ERROR) -> str:
        """Return the first failing rows with their values, for an error message."""
        if self.found.failing is None:
            return f"observed {shorten_value(self.found.observed, 200)}"
        first = [f"row {row.row_id} of {row.split}: {row.value}" for row in self._first(rows, limit)]
        return "; ".join(first) + ("; …" if len(self.failing) > limit else "")

    def _first(self, rows: RawRows, limit: int) -> list[FailingRow]:
        columns, found = columns_named_by_expectations([self.expectation]), list[FailingRow]()
        picked = rows.pick(self.failing[:limit].tolist(), None if self.explain else columns, said=self.reads_said)
        for position, row in picked.items():
            values = {column: row[column] for column in columns if column in row}
            value = ", ".join(f"{column}={shorten_value(value, 40)}" for column, value in values.items())
            if self.explain:
                value = self.explain(row) or ""
            elif len(values) == 1:
                value = shorten_value(next(iter(values.values())), 80)
            found.append(FailingRow(row_id=row["row_id"], split=rows.split_of(position), value=value))
        return found


def checks_of_objective(method: Objective[Any], schema: pa.Schema) -> list[Check]:
    """Return what an objective expects of the columns of rows with this schema."""
    texts = {field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)}
    return [("objective", expectation) for expectation in method.expectations(texts)]


def run_checks(
    checks: Sequence[Check], rows: RawRows, skip: Positions = NOTHING, objective: Objective[Any] | None = None
) -> list[CheckResult]:
    """Run checks on all rows but those at the positions in `skip`, those by key at the end.

    Of a group of equal rows, the first one stays. A row that another check sets aside does not count as the first, so
    that a good row is not set aside as the duplicate of a bad one. The objective, if there is one, checks every row
    that passes its own expectations.
    """
    kinds = [expectation_check_kind(expectation, rows.schema) for _, expectation in checks]
    results: dict[int, CheckResult] = {}
    for kind, check in (("row by row", check_row_by_row), ("column by column", check_column_by_column)):
        numbers = [number for number, own in enumerate(kinds) if own == kind]
        found = check([checks[number][1] for number in numbers], rows, skip)
        results |= {number: CheckResult(*checks[number], own) for number, own in zip(numbers, found, strict=True)}
    if objective is not None and objectives.needs_row_check(objective, "reject_reason"):
        results[len(checks)] = _check_usable(rows, objective, results.values())
    quarantined = quarantined_positions(results.values())
    for number, kind in enumerate(kinds):
        if kind != "by key":
            continue
        equal = find_duplicate_rows(checks[number][1], rows, skip, quarantined)
        results[number] = CheckResult(*checks[number], equal)
        quarantined = union_of_positions([quarantined, results[number].quarantined])
    return [results[number] for number in sorted(results)]


def _check_usable(rows: RawRows, objective: Objective[Any], results: Iterable[CheckResult]) -> CheckResult:
    """Let the objective check the rows that pass its own expectations."""
    skip = union_of_positions([result.failing for result in results if result.origin == "objective"])
    explain = partial(objectives.why_row_unusable, objective)
    found = check_rows_with_objective(explain, rows, skip, objective=objective_identity(objective))
    return CheckResult("objective", ROW_IS_USABLE, found, explain)


def check_groups_across_splits(rows: RawRows, set_aside: Positions) -> CheckResult:
    """Look for groups of the remaining rows, by the columns of `data.group_by`, that are in two splits.

    Those in the later split fail: training must not see what the model is evaluated on. Rows without a group are on their own.
    """
    return CheckResult("recipe", *find_groups_across_splits(rows, set_aside))


def check_rows_across_splits(objective: Objective[Any], rows: RawRows, set_aside: Positions) -> CheckResult:
    """Look for remaining rows that are one to the objective, and are in two splits: those in the later split fail, as of groups."""
    expectation, found = find_rows_across_splits(rows, set_aside, objective, objective_identity(objective))
    if found.success or found.failing is None:
        return CheckResult("recipe", expectation, found)
    counts = {split: len(positions_in_range(found.failing, *_ends(rows, split))) for split in ("train", "validation")}
    told = " and ".join(f"{count:,} {split} rows" for split, count in counts.items() if count)
    compared = {name: kind for name, kind in objective.columns().items() if name not in objective.beside_content}
    columns = ", ".join(compared)
    sentence = f"{told} are set aside: a split that is held out from them has rows that are equal in {columns}"
    inputs = [name for name, kind in compared.items() if kind in ("string", "optional")]
    can_group = inputs and {*compared.values()} <= {"string", "optional", "label", "number"}
    if can_group and not rows.splits["train"].group_by:
        sentence += _how_to_keep_together(rows, found, inputs)
    return CheckResult("recipe", expectation, found, sentence=sentence)


def _how_to_keep_together(rows: RawRows, found: ExpectationResult, inputs: Sequence[str]) -> str:
    """Return what keeps equal rows in one split, as far as the first ones tell; nothing where `data.group_by`, which compares what is written, does not.

    `inputs` are the columns of texts that a model is given.
    """
    group_by = f"`data.group_by: [{', '.join(inputs)}]` keeps those together that are written alike"
    for one, other in _first_pairs(rows, found, inputs):
        column = next((name for name in inputs if one[name] != other[name]), None)
        if column is None:
            continue
        if without_outer_space(one[column]) != without_outer_space(other[column]):
            return ""
        shown = " and ".join(shorten_value(row[column], 60) for row in (one, other))
        what = f"; some are written differently in {column} ({shown})"
        return f"{what}: where a hash splits the rows, strip the ends of texts at the source, and {group_by}"
    return f"; where a hash splits the rows, {group_by}"


def _first_pairs(rows: RawRows, found: ExpectationResult, columns: Sequence[str]) -> list[tuple[Row, Row]]:
    """Return the first rows that fail, each with the one that it repeats."""
    if found.failing is None or found.repeats is None:
        return []
    failing, repeated = found.failing[:_PAIRS].tolist(), found.repeats[0, :_PAIRS].tolist()
    picked = rows.pick([*failing, *repeated], columns)
    return [(picked[one], picked[other]) for one, other in zip(failing, repeated, strict=True)]


def _ends(rows: RawRows, split: str) -> tuple[int, int]:
    span = rows.span(split)
    return span.start, span.stop


def objective_identity(objective: Objective[Any]) -> list[Any]:
    """Return what decides an objective's verdicts beside its code."""
    own = objective.row_check_settings()
    return [type(objective).__module__, objective.options.model_dump(mode="json"), *([own] if own else ())]


def quarantined_positions(results: Iterable[CheckResult]) -> Positions:
    """Return the positions of the rows that go to quarantine."""
    return union_of_positions([result.quarantined for result in results])


def reasons_at_positions(results: Sequence[CheckResult], rows: RawRows, positions: Positions) -> list[list[str]]:
    """Return why each of the rows at `positions` is set aside or ends the stage; ascending.

    The checks are named in their order.
    """
    found: list[list[str]] = [[] for _ in positions]
    if not found:
        return found
    for result in results:
        first, end = np.searchsorted(result.rejected, [positions[0], positions[-1] + 1])
        own, places, of = np.intersect1d(positions, result.rejected[first:end], return_indices=True)
        details = [""] * len(own)
        if result.found.repeats is not None:
            repeats = result.found.repeats[:, first + of].T.tolist()
            details = [f", repeats row {row_id} of {rows.split_of(position)}" for position, row_id in repeats]
        elif result.explain:
            picked = rows.pick(own.tolist(), said=result.reads_said)
            details = [f": {result.explain(picked[position])}" for position in own.tolist()]
        call = expectation_as_call(result.expectation) if details else ""
        for place, detail in zip(places.tolist(), details, strict=True):
            found[place].append(call + detail)
    return found

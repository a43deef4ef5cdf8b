"""The results of all checks: which rows fail, which of them go to quarantine, and why."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from params.schema import Expectation
from tasks.validation.by_key import Duplicates, Keys, find_duplicates, find_in_two_splits, hash_keys
from tasks.validation.checks import (
    BY_KEY,
    GROUP_IS_IN_ONE_SPLIT,
    RowCheck,
    check_each_row,
    check_rows,
    check_whole_columns,
    kind_of,
)
from tasks.validation.expectations import columns_of, passes
from tasks.validation.raw_rows import NOTHING, ORDER, PartWork, Positions, RawRows, union
from tasks.validation.report import CheckReport, FailingRow, Origin, describe, shorten
from trainer import objectives
from trainer.objectives.bases.objective import Objective, Row

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
    success: bool
    """Whether the data pass; with `mostly`, they pass although some rows fail."""
    failing: Positions | None
    """Positions of the failing rows; None for a check of the table as a whole."""
    observed: Any = None
    """The observed value of a check of the table as a whole, as JSON."""
    repeats: NDArray[np.int64] | None = None
    """For each failing row the position of the earlier row that it repeats, if the check is for duplicates."""
    repeated_ids: NDArray[np.int64] | None = None
    """The row_id of each of those rows."""
    explain: Callable[[Row], str | None] | None = None
    """Returns the objective's reason for a failing row, if it checked the rows itself."""

    @property
    def quarantines(self) -> bool:
        """Whether the failing rows go to quarantine."""
        return not self.success and self.expectation.on_failure == "quarantine" and self.failing is not None

    @property
    def rejects(self) -> bool:
        """Whether the failing rows go to quarantine or end the stage."""
        return not self.success and self.expectation.on_failure != "report"

    def report(self, rows: RawRows) -> CheckReport:
        """Return the check's entry in the report."""
        return CheckReport(
            type=self.expectation.type,
            arguments=self.expectation.arguments,
            on_failure=self.expectation.on_failure,
            origin=self.origin,
            success=self.success,
            unexpected_count=None if self.failing is None else len(self.failing),
            observed=self.observed,
            examples=self._first(rows, MAX_EXAMPLES_IN_REPORT),
        )

    def examples(self, rows: RawRows, limit: int = MAX_EXAMPLES_IN_ERROR) -> str:
        """Return the first failing rows with their values, for an error message."""
        if self.failing is None:
            return f"observed {shorten(self.observed, 200)}"
        first = [f"row {row.row_id} of {row.split}: {row.value}" for row in self._first(rows, limit)]
        return "; ".join(first) + ("; …" if len(self.failing) > limit else "")

    def _first(self, rows: RawRows, limit: int) -> list[FailingRow]:
        positions = (NOTHING if self.failing is None else self.failing)[:limit].tolist()
        columns = None if self.explain else columns_of([self.expectation])
        return [
            FailingRow(row_id=row["row_id"], split=rows.split_of(position), value=self._value(row, columns or ()))
            for position, row in rows.pick(positions, columns).items()
        ]

    def _value(self, row: Row, columns: Sequence[str]) -> str:
        if self.explain:
            return self.explain(row) or ""
        values = {column: row[column] for column in columns if column in row}
        if len(values) == 1:
            return shorten(next(iter(values.values())), 80)
        return ", ".join(f"{column}={shorten(value, 40)}" for column, value in values.items())


def run_checks(
    checks: Sequence[Check], rows: RawRows, skip: Positions = NOTHING, objective: Objective[Any] | None = None
) -> list[CheckResult]:
    """Run checks on all rows but those at the positions in `skip`.

    Of a group of equal rows, the first one stays. A row that another check sets aside does not count as the first, so
    that a good row is not set aside as the duplicate of a bad one. The objective, if there is one, checks every row
    that passes its own expectations.
    """
    results = _without_duplicates(checks, rows, skip)
    if objective is not None and objectives.looks_at_rows(objective, "reject_reason"):
        failed = union([r.failing for r in results if r.origin == "objective" and r.failing is not None])
        found = check_each_row(objective.reject_reason, rows, failed, objective=_identity(objective))
        results.append(_result(("objective", ROW_IS_USABLE), found, explain=objective.reject_reason))
    quarantined = quarantined_rows(results)
    for i, result in enumerate(results):
        if result.expectation.type in BY_KEY:
            results[i] = _duplicates(result, rows, skip, quarantined)
            quarantined = union([quarantined, quarantined_rows([results[i]])])
    return results


def _without_duplicates(checks: Sequence[Check], rows: RawRows, skip: Positions) -> list[CheckResult]:
    """Run the checks of rows and of columns; those by key have no failing rows yet."""
    kinds = [kind_of(expectation, rows.schema) for _, expectation in checks]
    if not rows.parts:  # Great Expectations says what it makes of no rows
        kinds = ["column by column" if kind == "row by row" else kind for kind in kinds]

    def of(kind: str) -> list[Expectation]:
        return [expectation for (_, expectation), own in zip(checks, kinds, strict=True) if own == kind]

    by_row = iter(check_rows(of("row by row"), rows, skip))
    by_column = iter(check_whole_columns(of("column by column"), rows, skip))
    results = []
    for check, kind in zip(checks, kinds, strict=True):
        if kind == "by key":
            results.append(CheckResult(check[1], check[0], success=True, failing=NOTHING))
        elif kind == "row by row":
            results.append(_result(check, next(by_row)))
        else:
            found = next(by_column)
            results.append(_result(check, RowCheck(found.success, found.positions, found.observed)))
    return results


def _result(check: Check, found: RowCheck, explain: Callable[[Row], str | None] | None = None) -> CheckResult:
    origin, expectation = check
    return CheckResult(expectation, origin, found.success, found.failing, found.observed, explain=explain)


def _duplicates(result: CheckResult, rows: RawRows, skip: Positions, set_aside: Positions) -> CheckResult:
    """Return the result of a check by key: success as Great Expectations has it, for which all equal rows fail."""
    with _hashed(result.expectation, rows, skip) as keys:
        found = find_duplicates(keys, set_aside)
    return _repeating(result, found, rows, success=passes(result.expectation, found.members, keys.rows))


def groups_in_one_split(rows: RawRows, set_aside: Positions) -> CheckResult:
    """Look for groups of the remaining rows, by the columns of `data.group_by`, that are in two splits of a source.

    Those in the later split fail: training must not see what the model is evaluated on. Rows without a group are on their own.
    """
    columns: Any = {"column_list": rows.splits["train"].group_by}
    groups = Expectation(type=GROUP_IS_IN_ONE_SPLIT, **columns)
    with _hashed(groups, rows, set_aside) as keys:
        found = find_in_two_splits(keys, [rows.span(split).stop for split in ORDER])
    result = CheckResult(groups, "recipe", success=True, failing=NOTHING)
    return _repeating(result, found, rows, success=not len(found.failing))


@contextlib.contextmanager
def _hashed(expectation: Expectation, rows: RawRows, skip: Positions) -> Iterator[Keys]:
    """Hash the keys of the rows; the files are there inside the block."""
    with rows.folder() as folder:
        yield hash_keys(expectation, rows, folder, skip)


def _repeating(result: CheckResult, found: Duplicates, rows: RawRows, *, success: bool) -> CheckResult:
    known, places = np.unique(found.repeats, return_inverse=True)
    ids = rows.row_ids(known)[places]
    return replace(result, success=success, failing=found.failing, repeats=found.repeats, repeated_ids=ids)


def known_to_training(method: Objective[Any], rows: RawRows, set_aside: Positions) -> CheckResult:
    """Compare the remaining rows with the remaining train split, as the objective does."""
    labels = rows.run(
        partial(row_labels_of, method),
        rows.parts_of("train"),
        what="labels of rows",
        columns=list(method.columns()),
        skip=set_aside,
        objective=_identity(method),
    )
    state = method.state_of(set().union(*labels))
    unseen_label = partial(method.unseen_label, state=state)
    found = check_each_row(unseen_label, rows, set_aside, objective=_identity(method), state=state)
    return _result(("objective", ROW_IS_KNOWN), found, explain=unseen_label)


def row_labels_of(method: Objective[Any], work: PartWork) -> set[str]:
    """Return the labels in the rows of one shard, as the objective sees them."""
    return {label for _, row in work.part.each(work.skip, work.columns) for label in method.row_labels(row)}


def _identity(objective: Objective[Any]) -> list[Any]:
    """Return what decides an objective's verdicts beside its code."""
    return [type(objective).__module__, objective.options.model_dump(mode="json")]


def quarantined_rows(results: Sequence[CheckResult]) -> Positions:
    """Return the positions of the rows that go to quarantine."""
    return union([result.failing for result in results if result.quarantines and result.failing is not None])


def reasons(results: Sequence[CheckResult], rows: RawRows, positions: Positions) -> list[list[str]]:
    """Return why each of the rows at `positions` is set aside or ends the stage; ascending.

    The checks are named in their order.
    """
    found: list[list[str]] = [[] for _ in positions]
    if not found:
        return found
    for result in results:
        if not result.rejects or result.failing is None:
            continue
        first, end = np.searchsorted(result.failing, [positions[0], positions[-1] + 1])
        own, places, of = np.intersect1d(positions, result.failing[first:end], return_indices=True)
        details = [""] * len(own)
        if result.repeats is not None and result.repeated_ids is not None:
            earlier, ids = result.repeats[first + of].tolist(), result.repeated_ids[first + of].tolist()
            details = [f", repeats row {i} of {rows.split_of(p)}" for i, p in zip(ids, earlier, strict=True)]
        elif result.explain:
            picked = rows.pick(own.tolist())
            details = [f": {result.explain(picked[position])}" for position in own.tolist()]
        for place, detail in zip(places.tolist(), details, strict=True):
            found[place].append(describe(result.expectation) + detail)
    return found

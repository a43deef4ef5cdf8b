"""validate: raw rows in, good rows out, and a page that says what became of the others.

    runs/<recipe>/raw/<split>.parquet -> runs/<recipe>/validated/
        rows/<split>.parquet    the good rows, in source order
        quarantine.parquet      the others, each with its reasons
        validation.json         the report
        report.html             the same for people, readable offline

The checks are those that the objective demands and those in the recipe, all of them Great Expectations, run on all
splits as one table with a column `split`; beside them, the objective may look at each row as a whole, for what no check
of a column can see (`row_is_usable`, `row_is_known_to_training`). What an expectation's `on_failure` means:

- `quarantine`: failing rows are set aside. Of equal rows the first stays: one from test, else validation, else train.
  A check of the table as a whole names no rows, so that nothing could be set aside; it ends the stage like `fail`.
- `fail`: the stage ends, and nothing of `validated/` changes.
- `report`: shown, without consequences.

A check with `mostly` passes, and its rows stay, as long as that share of rows passes. Checks ignore nulls, but for
`expect_column_values_to_not_be_null`. When the stage ends because of bad data, the page and the rows at fault are in
.scratch/<recipe>/validation-failed/.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from params import DataError
from params.artifacts import SPLITS, Artifacts, whole_folder
from params.schema import Expectation, ObjectiveChoice, Validation
from tasks.stages import save_report
from tasks.validation import checks
from tasks.validation.findings import KNOWN, Demand, Finding, examine, look, set_aside
from tasks.validation.report import ShownRow, ValidationReport, describe, render, shorten
from tasks.validation.rows import Rows, read_rows
from trainer import objectives
from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)
__all__ = ["ValidationReport", "validate"]

SHOWN_ROWS = 50


def validate(artifacts: Artifacts, *, validation: Validation, objective: ObjectiveChoice) -> ValidationReport:
    """Check the rows that ingest wrote, and set the bad ones aside.

    Raises:
        RecipeError: an expectation does not exist or has wrong arguments.
        DataError: columns are missing, a check that may not fail did, or too many rows would be set aside.
        ValidationEngineError: a check could not be run.
    """
    learned = objectives.build(objective)
    wrong = checks.problems(validation.expectations)
    if wrong:
        raise checks.recipe_error(wrong)
    named = dict.fromkeys(checks.columns_named(validation.expectations), "a check in validation.expectations")
    kinds = learned.columns()
    rows = read_rows(artifacts.raw, kinds, {**named, **dict.fromkeys(kinds, f"the objective {objective.name}")})
    logger.info("checking %d rows", rows.table.num_rows)

    findings = _find(learned, validation.expectations, rows)
    aside = set_aside(findings)
    report = _report(rows, findings, aside, validation)
    failures = _failures(rows, findings, report)
    if failures:
        failed = artifacts.failed_validation
        with whole_folder(failed) as folder:
            _write_why(folder, artifacts.recipe, rows, findings, report=report, failures=failures)
        fix = "mend the data"
        if report.share > report.max_quarantined:
            fix += ", or raise validation.max_quarantined"
        if any(check.stops for check in report.checks):
            fix += ", or change the check"
        raise DataError(str(artifacts.raw), "\n".join(failures), f"{fix}; every row and reason: {failed}/report.html")

    with whole_folder(artifacts.validated) as folder:
        _write_rows(folder / "rows", rows, aside)
        _write_why(folder, artifacts.recipe, rows, findings, report=report, failures=[])
        save_report(report, folder / artifacts.report("validate").name)
    shutil.rmtree(artifacts.failed_validation, ignore_errors=True)
    return report


def _find(learned: Objective[Any], wanted: Sequence[Expectation], rows: Rows) -> list[Finding]:
    """All checks on all rows; then, on the rows left, those demands of the objective that follow from the rows.

    A label whose every training row is set aside is as unknown to training as one that was never there.
    """
    findings = _all(learned, wanted, rows)
    if type(learned).unseen_label is Objective.unseen_label:
        return findings
    aside = set_aside(findings)
    train = rows.span("train")
    if all(position in aside for position in train):
        return findings
    state = learned.collect_state(row for position, row in rows.each() if position in train and position not in aside)
    return [*findings, look(KNOWN, rows, lambda row: learned.unseen_label(row, state), without=aside)]


def _all(learned: Objective[Any], wanted: Sequence[Expectation], rows: Rows) -> list[Finding]:
    train = rows.span("train")
    demanded = learned.expectations(rows.frame.iloc[train.start : train.stop])
    demands: list[Demand] = [("objective", e) for e in demanded]
    findings = examine([*demands, *(("recipe", e) for e in wanted)], rows, rows.frame, learned)
    aside = set_aside(findings)
    kept = [position for position in train if position not in aside]
    if not aside or not kept:
        return findings
    again = [e for e in learned.expectations(rows.frame.iloc[kept]) if e not in demanded]
    left = rows.frame.drop(index=sorted(aside))
    return [*findings, *examine([("objective, on the rows left", e) for e in again], rows, left)]


def _report(rows: Rows, findings: Sequence[Finding], aside: set[int], validation: Validation) -> ValidationReport:
    rows_in = {split: len(rows.span(split)) for split in SPLITS}
    return ValidationReport(
        rows_in=rows_in,
        rows_out={split: sum(p not in aside for p in rows.span(split)) for split in SPLITS},
        quarantined=len(aside),
        share=len(aside) / max(1, sum(rows_in.values())),
        max_quarantined=validation.max_quarantined,
        checks=[finding.check(rows) for finding in findings],
    )


def _failures(rows: Rows, findings: Sequence[Finding], report: ValidationReport) -> list[str]:
    """Why the stage must end, most telling first."""
    total = sum(report.rows_in.values())
    found = []
    for finding in findings:
        if finding.check(rows).stops:
            count = "the table fails" if finding.at_fault is None else f"{len(finding.at_fault)} of {total} rows fail"
            found.append(f"{describe(finding.expectation)}: {count}; {finding.evidence(rows)}")
    if report.share > report.max_quarantined:
        reasons = sorted((f for f in findings if f.sets_aside), key=lambda f: -len(f.at_fault or ()))
        found.append(
            f"{report.quarantined} of {total} rows ({report.share:.1%}) would be set aside, more than"
            f" validation.max_quarantined = {report.max_quarantined:g} allows"
        )
        found += [
            f"  {len(f.at_fault or ())} rows: {describe(f.expectation)}; {f.evidence(rows, 3)}" for f in reasons[:5]
        ]
    lost = [s for s in SPLITS if not report.rows_out[s] and (report.rows_in[s] or s == "train")]
    if not sum(report.rows_out.values()):
        found.append(f"no row is left in any split: {total} came in, all of them are set aside")
    elif lost:
        found.append(f"no row is left in {' and '.join(lost)}")
    return found


def _write_rows(folder: Path, rows: Rows, aside: set[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for split in SPLITS:
        keep = pa.array([position not in aside for position in rows.span(split)], pa.bool_())
        pq.write_table(rows.splits[split].filter(keep), folder / f"{split}.parquet")


def _write_why(
    folder: Path, recipe: str, rows: Rows, findings: Sequence[Finding], *, report: ValidationReport, failures: list[str]
) -> None:
    """quarantine.parquet and report.html. Where the stage fails, both also hold the rows that made it fail."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    reasons: dict[int, list[str]] = {}
    for finding in findings:
        if finding.condemns:
            for position in finding.at_fault or ():
                reasons.setdefault(position, []).append(finding.reason(rows, position))
    positions = [p for split in SPLITS for p in rows.span(split) if p in reasons]
    columns = [c for c in rows.table.column_names if c != "row_id"]
    bad = rows.table.take(pa.array(positions, pa.int64()))
    quarantine = {
        "row_id": bad["row_id"],
        "split": pa.array([rows.split_names[p] for p in positions], pa.string()),
        "reasons": pa.array([reasons[p] for p in positions], pa.list_(pa.string())),
    }
    quarantine |= {(f"source_{c}" if c in quarantine else c): bad[c] for c in columns}
    pq.write_table(pa.table(quarantine), folder / "quarantine.parquet")
    stopping = {p for f in findings if f.check(rows).stops for p in f.at_fault or ()}
    shown = [
        ShownRow(
            row_id=rows.ids[p],
            split=rows.split_names[p],
            reasons=reasons[p],
            values=[(name, shorten(value, 240)) for name, value in rows.values(p, columns[:12]).items()],
        )
        for p in sorted(positions, key=lambda p: p not in stopping)[:SHOWN_ROWS]
    ]
    page = render(report, recipe=recipe, failures=failures, rows=shown, at_fault=len(positions))
    (folder / "report.html").write_text(page, encoding="utf-8")

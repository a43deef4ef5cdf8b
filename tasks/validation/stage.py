"""validate: raw rows in, good rows out, and a page about the rows that were set aside.

    runs/<recipe>/raw/<split>/ -> runs/<recipe>/validated/
        rows/<split>/           the good rows, in source order and in the shards of the raw rows
        rows/corpus/            the documents of `data.corpus`, if there is one
        rows/suites/<name>/     the rows of `evaluation.suites`
        quarantine.parquet      the rows that were set aside, each with the reasons
        validation.json         the report
        report.html             the report as a page that needs no network
        evergreen-data-profile.dat    what a later run compares its rows with
        start/                  the published model that the training starts from, if it does

The stage first plans which rows to set aside, then carries out the plan. The checks of the objective and of the recipe are
expectations of Great Expectations, for the rows of all splits together; a condition can name a column `split` (checks.py). No group of
`data.group_by` may be in two splits. The objective may also check each row as a whole. An expectation's `on_failure` says what happens:

- `quarantine`: failing rows are set aside. Of equal rows the first stays: one from test, else validation, else train.
  A check of the table as a whole names no rows to set aside, so it ends the stage like `fail`.
- `fail`: the stage ends, and `validated/` does not change. The page and the failing rows are in .scratch/<recipe>/validation-failed/.
- `report`: the failure is shown and has no consequences.

Checks ignore nulls, except `expect_column_values_to_not_be_null`. With `mostly`, failing rows stay if that share of rows passes.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from params import DataError, RecipeError
from params.foundation.artifacts import CORPUS, SPLITS, Artifacts, replace_folder_atomically
from params.schema import Launch, ObjectiveChoice, Replay, Start
from params.sections.evaluation import Suite
from params.sections.rows import PretrainedTokenizer, Tokenization, TrainTokenizer, Validation
from tasks.hub_client.lost_releases import refuse_hub_without_releases
from tasks.measurement import ValidatedRows, list_measurements
from tasks.shards.kept_work import ShardWorkers
from tasks.stage_inputs import StageInputsSnapshot
from tasks.stages import save_report
from tasks.tokenization.tokenizers import train_or_load_tokenizer
from tasks.validation import check_results
from tasks.validation.corrections import corrected_rows
from tasks.validation.documents import write_good_documents
from tasks.validation.expectations import columns_named_by_expectations, expectation_problems
from tasks.validation.label_checks import ROW_IS_KNOWN, check_labels
from tasks.validation.near_duplicates import check_near_duplicates
from tasks.validation.number_checks import check_numbers
from tasks.validation.raw_rows import RawRows, open_raw_rows
from tasks.validation.report import ValidationReport, expectation_as_call
from tasks.validation.separated_rows import SeparationPlan, write_failing_rows_and_page, write_good_rows
from tasks.validation.start import pin_start
from tasks.validation.time_checks import check_times
from trainer import objectives
from trainer.data.shards import Manifest
from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)


def validate(
    artifacts: Artifacts,
    *,
    seed: int,
    validation: Validation,
    objective: ObjectiveChoice,
    repo_id: str,
    endpoint: str,
    launch: Launch,
    start: Start = "base",
    replay: Replay | None = None,
    tokenizer: TrainTokenizer | PretrainedTokenizer | None = None,
    suites: Sequence[Suite] = (),
    inputs: StageInputsSnapshot | None = None,
) -> ValidationReport:
    """Check the rows that ingest wrote, set the bad ones aside, and compare the new ones with those of the published model.

    The template of `tokenizer` may refuse conversations, which are then set aside.

    Raises:
        RecipeError: an expectation does not exist or has wrong arguments, or the objective takes no `data.corpus`.
        ModelError: the tokenizer cannot be used, or the training cannot start from the published model.
        DataError: columns are missing, a check with `on_failure: fail` failed, too many rows would be set aside, or a measurement
            ends the stage, such as `drift: fail`.
        HubRefusedError: the Hub does not know what the recipe's log says was published there.
        HubRefusedError, TransientError: with `drift: fail`, or a `start` other than `base`, if the Hub does not say which model is
            published.
        ValidationEngineError: a check could not be run.
    """
    refuse_hub_without_releases(artifacts, repo_id=repo_id, endpoint=endpoint)
    method = objectives.build_objective(objective)
    if tokenizer and method.renders_conversations():
        method.prepare_tokenizer(train_or_load_tokenizer(Tokenization(tokenizer=tokenizer), ()))
    kinds = method.columns()
    needed = dict.fromkeys(columns_named_by_expectations(validation.expectations), "a check in validation.expectations")
    needed |= dict.fromkeys(kinds, f"the objective {objective.name}")
    imports = ["tasks.validation.gx", "tasks.validation.check_results"]
    with (
        ShardWorkers(artifacts, "validate", launch, inputs, imports=imports) as workers,
        corrected_rows(artifacts, method, workers) as (raw, corrections),
    ):
        workers.expect(sum(len(Manifest.read(artifacts.raw / split).shards) for split in SPLITS))
        _refuse_wrong_expectations(validation)
        rows = open_raw_rows(raw, kinds, needed, workers, artifacts.validation_keys)
        logger.info("validate: checking %d rows", len(rows))
        given = Counter(corrections.given if corrections else ())
        plan = SeparationPlan.of(rows, _check_all(method, validation, rows, given), validation.max_quarantined)
        if failures := _failures(plan):
            _fail(artifacts, plan, failures, f"{_fix(plan.report)}; ")
        with replace_folder_atomically(artifacts.validated) as folder:
            write_good_rows(folder / artifacts.rows.name, plan)
            space, documents = method.vector_space, folder / artifacts.rows.name / CORPUS
            column = space.document_column if space else None
            corpus = write_good_documents(artifacts.raw / CORPUS, documents, column, validation.max_quarantined)
            parts: Any = {"objective": method, "repo_id": repo_id, "endpoint": endpoint}
            plan = replace(plan, report=plan.report.model_copy(update={"corpus": corpus, "corrections": corrections}))
            validated = ValidatedRows(
                artifacts=artifacts,
                folder=folder,
                workers=workers,
                validation=validation,
                suites=suites,
                raw=rows,
                set_aside=plan.aside,
                seed=seed,
                **parts,
            )
            plan = _measure(validated, plan)
            pin_start(artifacts, folder, workers, start=start, replay=replay, name=objective.name, **parts)
            write_failing_rows_and_page(folder, artifacts.recipe, plan, failures=[])
            save_report(plan.report, folder / artifacts.report("validate").name)
    shutil.rmtree(artifacts.failed_validation, ignore_errors=True)
    noted = [corrections.sentence] if corrections else []
    for sentence in filter(None, [*noted, *(result.noted for result in plan.results)]):
        logger.warning("validate: %s", sentence)
    return plan.report


def _measure(validated: ValidatedRows, plan: SeparationPlan) -> SeparationPlan:
    """Return the plan with a report of what was measured in the rows; end the stage if that demands it."""
    for one in list_measurements():
        finding = one.measure_rows(validated)
        if finding is None:
            continue
        plan = replace(plan, report=plan.report.with_findings(finding.found))
        if finding.stops:
            _fail(validated.artifacts, plan, [finding.stops], finding.fix, shows="examples")
    return plan


def _check_all(
    method: Objective[Any], validation: Validation, rows: RawRows, given: Counter[str]
) -> list[check_results.CheckResult]:
    """Run all checks; each but the first look at all rows skips the rows that those before it set aside.

    The labels are compared last: one is unknown to training even if all training rows that have it are set aside.
    """
    results, quarantined = [*check_times(rows), *check_numbers(rows)], check_results.quarantined_positions
    checks: list[check_results.Check] = [("recipe", expectation) for expectation in validation.expectations]
    checks = [*check_results.checks_of_objective(method, rows.schema), *checks]
    results += check_results.run_checks(checks, rows, quarantined(results), method)
    if rows.splits["train"].group_by:
        results.append(check_results.check_groups_across_splits(rows, quarantined(results)))
    results.append(check_results.check_rows_across_splits(method, rows, quarantined(results)))
    if validation.near_duplicates:
        results.append(check_near_duplicates(method, validation.near_duplicates, rows, quarantined(results)))
    return results + check_labels(method, rows, quarantined(results), given)


def _refuse_wrong_expectations(validation: Validation) -> None:
    if problems := expectation_problems(validation.expectations):
        lines = "\n".join(f"{'.'.join(map(str, one.key))}: {one.what}; {one.fix}" for one in problems)
        raise RecipeError.at("validation.expectations", f"cannot be run\n{lines}", "fix the expectations above")


def _fix(report: ValidationReport) -> str:
    """Return what helps where the stage must end."""
    stopping = {check.type: check.origin for check in report.checks if check.stops}
    fixes = ["fix the data"]
    if [*stopping] == [ROW_IS_KNOWN]:
        fixes = ["add training rows with these labels, or take the rows with them out of the held-out data"]
    if report.share > report.max_quarantined:
        fixes.append("raise validation.max_quarantined")
    if "recipe" in stopping.values():
        fixes.append("change the check")
    return ", or ".join(fixes)


def _failures(plan: SeparationPlan) -> list[str]:
    """Return why the stage must end, the most important reason first."""
    rows, report = plan.rows, plan.report
    total = sum(report.rows_in.values())
    checked = zip(plan.results, report.checks, strict=True)
    failures = [_told_failure(result, rows, total) for result, check in checked if check.stops]
    if report.share > report.max_quarantined:
        failures.append(
            f"{report.quarantined} of {total} rows ({report.share:.1%}) would be set aside, more than"
            f" validation.max_quarantined = {report.max_quarantined:g} allows"
        )
        setting_aside = [result for result in plan.results if len(result.quarantined)]
        setting_aside.sort(key=lambda result: len(result.quarantined), reverse=True)
        for one in setting_aside[:5]:
            call = expectation_as_call(one.expectation)
            failures.append(f"  {len(one.failing)} rows: {call}; {one.examples(rows, 3)}")
    return failures + _told_emptied(plan, total)


def _told_failure(result: check_results.CheckResult, rows: RawRows, total: int) -> str:
    if result.sentence:
        return result.sentence
    count = "the table fails" if result.found.failing is None else f"{len(result.failing)} of {total} rows fail"
    return f"{expectation_as_call(result.expectation)}: {count}; {result.examples(rows)}"


def _told_emptied(plan: SeparationPlan, total: int) -> list[str]:
    """Return which splits would have no rows, with what the checks that set rows aside note."""
    report = plan.report
    emptied = [s for s in SPLITS if not report.rows_out[s] and (report.rows_in[s] or s == "train")]
    if not sum(report.rows_out.values()):
        return [f"no rows remain in any split: all {total} rows would be set aside"]
    if not emptied:
        return []
    noted = [result.noted for result in plan.results if len(result.quarantined) and result.noted]
    return [f"no rows remain in {' and '.join(emptied)}", *noted]


def _fail(
    artifacts: Artifacts,
    plan: SeparationPlan,
    failures: list[str],
    fix: str,
    *,
    shows: str = "the failing rows and the reasons",
) -> NoReturn:
    with replace_folder_atomically(artifacts.failed_validation) as folder:
        write_failing_rows_and_page(folder, artifacts.recipe, plan, failures=failures)
    page = f"{artifacts.failed_validation}/report.html shows {shows}"
    raise DataError(str(artifacts.raw), "\n".join(failures), fix + page)

"""The rows of `evaluation.suites`: each of them must be usable, because none may be left out.

runs/<recipe>/raw/suites/<name>/ -> runs/<recipe>/validated/rows/suites/<name>/     the same rows, as the objective reads them
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

from params import DataError
from params.foundation.artifacts import SUITES
from params.sections.evaluation import Suite
from params.sections.rows import Expectation
from tasks.measurement import ValidatedRows
from tasks.shards.split_rows import SplitRows
from tasks.validation.check_results import CheckResult, checks_of_objective, objective_identity, run_checks
from tasks.validation.checks import check_rows_with_objective
from tasks.validation.label_checks import ROW_IS_KNOWN, count_labels
from tasks.validation.number_checks import check_numbers
from tasks.validation.raw_rows import NOTHING, ORDER, Positions, RawRows, ShardWithPositions, require_columns
from tasks.validation.report import expectation_as_call
from trainer import objectives
from trainer.data.shards import folder_sha256
from trainer.objectives.bases.objective import Objective, Row

_PATTERN_IS_USABLE = "row_has_a_regular_expression"
"""The check of `matches`; not an expectation of Great Expectations."""


def copy_suites(validated: ValidatedRows) -> dict[str, str]:
    """Check the rows of all suites, and copy them to those of the splits; return a hash of each suite by name.

    A suite may have the labels of the splits but for those that only rows have which were set aside.

    Raises:
        DataError: columns are missing, or a row is unusable, or has a label that no training row has.
    """
    found = dict[str, str]()
    artifacts, method, rows = validated.artifacts, validated.objective, validated.raw
    for number, suite in enumerate(validated.suites):
        where = f"evaluation.suites.{number}"
        target = validated.folder / artifacts.rows.name / SUITES / suite.name
        kinds = method.columns()
        own = SplitRows(artifacts.raw / SUITES / suite.name).reading(kinds)
        needed = dict.fromkeys(kinds, "the objective")
        needed |= {suite.matches: f"{where}.matches"} if suite.matches else {}
        require_columns(f"{where} ({suite.name})", own.schema, kinds, needed)
        parts, start = list[ShardWithPositions](), 0
        for shard in own.shards:
            parts.append(ShardWithPositions(ORDER[0], shard, start))
            start += len(shard)
        # all of them count as those of one split
        of_suite = RawRows(dict.fromkeys(ORDER, own), tuple(parts), rows.workers, rows.scratch)
        if failed := [
            result for result in _checks(suite, method, of_suite, rows, validated.set_aside) if len(result.failing)
        ]:
            told = [f"{expectation_as_call(one.expectation)}: {one.examples(of_suite)}" for one in failed]
            what = "\n".join(["has rows that cannot be used:", *(line.replace(" of test:", ":") for line in told)])
            raise DataError(f"{where} ({suite.name})", what, "fix or remove them: every row of a suite counts")
        target.mkdir(parents=True)
        for file in own.manifest.shards:
            shutil.copyfile(own.manifest.path(file), target / file.name)
        own.write_manifest(target, [*own.manifest.shards])
        found[suite.name] = folder_sha256(target, own.manifest.shards)
    return found


def _checks(
    suite: Suite, method: Objective[Any], of_suite: RawRows, rows: RawRows, set_aside: Positions
) -> Iterator[CheckResult]:
    yield from check_numbers(of_suite)
    found = run_checks(checks_of_objective(method, of_suite.schema), of_suite, NOTHING, method)
    yield from found
    if any(len(result.failing) for result in found):
        return  # the rest would fail for the same reasons
    if objectives.needs_row_check(method, "unseen_label"):
        state = method.state_of(set(count_labels(method, rows, set_aside)["train"]))
        unseen = partial(method.unseen_label, state=state)
        settings = {"objective": objective_identity(method), "state": state}
        own = check_rows_with_objective(unseen, of_suite, NOTHING, **settings)
        yield CheckResult("objective", Expectation(type=ROW_IS_KNOWN), own, unseen)
    if suite.matches:
        explain = partial(why_no_pattern, suite.matches)
        own = check_rows_with_objective(explain, of_suite, NOTHING, matches=suite.matches)
        yield CheckResult("recipe", Expectation(type=_PATTERN_IS_USABLE), own, explain)


def why_no_pattern(column: str, row: Row) -> str | None:
    """Return why a row has no regular expression in a column; None if it has one."""
    if not str(row[column] or "").strip():
        return f"its {column} is empty"
    try:
        re.compile(str(row[column]))
    except re.error as error:
        return f"its {column}, {row[column]!r}, is no regular expression: {error}"
    return None

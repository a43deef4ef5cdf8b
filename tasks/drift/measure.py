"""Measure drift: write the profile of this run's rows, and compare its new rows with the published profile.

    validated/rows/train/ -> validated/evergreen-data-profile.dat, which the release carries
                          -> a `DriftReport`, which the report of the validate stage holds

Only the train split counts: it is what a model learns from. Held-out rows may come from elsewhere, and the gate looks
at them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from params.foundation.artifacts import Artifacts
from params.schema import Drift
from tasks.drift.comparison import Finding, find_drift
from tasks.drift.profile import Profile
from tasks.drift.published import fetch
from tasks.drift.report import DriftReport, ExampleRow
from tasks.drift.rows import MAX_SAMPLED, ComparedColumns, read_sampled_rows, scan, text_of, without_identifiers
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from trainer.data.shards import ROW_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)
_MAX_EXAMPLES = 5
_MAX_NAMED = 1000
_MAX_TEXT = 240


def measure(
    artifacts: Artifacts,
    folder: Path,
    workers: ShardWorkers,
    *,
    drift: Drift,
    objective: Objective[Any],
    seed: int,
    repo_id: str,
    endpoint: str,
) -> DriftReport | None:
    """Write the profile into `folder`, which holds the valid rows, and compare; None if the recipe turns this off.

    Args:
        artifacts: of the run; say where the local Hub is.
        folder: what will be `Artifacts.validated`.
        workers: do the work on shards.
        drift: of the recipe.
        objective: says what its columns hold, and which labels a row has.
        seed: of the permutations.
        repo_id: repository that the recipe publishes to.
        endpoint: its Hub.

    Raises:
        HubRefusedError, TransientError: with `on_drift: fail`, if the Hub does not say which model is published.
    """
    if drift.on_drift == "off":
        return None
    rows = SplitRows(folder / artifacts.rows.name / "train")
    columns = ComparedColumns.of(rows, objective, drift.ignore)
    scanned = scan(rows, columns, workers)
    smallest = scanned.smallest
    sampled = read_sampled_rows(rows, columns, smallest.row_ids[:MAX_SAMPLED], workers)
    columns, sampled = without_identifiers(columns, sampled)
    profile = Profile.of(scanned, columns, sampled)
    profile.save(folder / artifacts.data_profile.name)

    published = fetch(artifacts, repo_id=repo_id, endpoint=endpoint, must_answer=drift.on_drift == "fail")
    report = DriftReport(
        status="no_reference",
        reason=published.reason,
        repo_id=repo_id,
        revision=published.revision,
        confidence=drift.confidence,
        min_confidence_fall=drift.min_confidence_fall,
        identifiers=columns.identifiers,
    )
    reference = published.profile
    if reference is not None and reference.content != profile.content:
        learned = ", ".join(reference.content)
        report = report.model_copy(update={"reason": f"{published.revision} learned from other columns: {learned}"})
    elif reference is not None:
        is_new, looked_at = reference.is_new(smallest.hashes)
        report = report.model_copy(update={"status": "nothing_new", "looked_at": looked_at})
        if is_new.any():
            new_ids = smallest.row_ids[is_new][:MAX_SAMPLED]
            report = _compared(report, reference, rows, columns, new_ids, workers=workers, drift=drift, seed=seed)
    logger.info("validate: %s", report.sentence)
    return report


def _compared(
    report: DriftReport,
    reference: Profile,
    rows: SplitRows,
    columns: ComparedColumns,
    new_ids: NDArray[np.int64],
    *,
    workers: ShardWorkers,
    drift: Drift,
    seed: int,
) -> DriftReport:
    findings = find_drift(reference, read_sampled_rows(rows, columns, new_ids, workers), drift, seed)
    changes = tuple(finding.change for finding in findings)
    known_rows = max((len(one.values) for one in reference.samples if one.kind != "label"), default=0)
    shown = _shown(findings, new_ids)
    values = {row.pop(ROW_ID): row for row in rows.pick(shown, columns.content)}
    examples = tuple(
        ExampleRow(row_id=row_id, values={name: _shorten(value) for name, value in values[row_id].items()})
        for row_id in shown
    )
    return report.model_copy(
        update={
            "status": "compared",
            "known_rows": known_rows,
            "new_rows": len(new_ids),
            "changes": changes,
            "examples": examples,
            "new_row_ids": tuple(new_ids[:_MAX_NAMED].tolist()),
        }
    )


def _shown(findings: Sequence[Finding], new_ids: NDArray[np.int64]) -> list[int]:
    """Return the ids of the rows that show best what moved."""
    first = next((finding for finding in findings if finding.change.moved), None)
    if first is None:
        return []
    order = np.argsort(-first.examples, kind="stable")[:_MAX_EXAMPLES]
    best = [i for i in order if first.examples[i] > 0] or order[:1]
    return [int(new_ids[i]) for i in best]


def _shorten(value: object) -> str:
    text = text_of(value) if isinstance(value, str | list) else str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"

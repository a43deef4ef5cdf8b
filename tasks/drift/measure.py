"""Measure drift: write the profile of this run's rows, and compare its new rows with the published profile.

    validated/rows/train/ -> validated/evergreen-data-profile.dat, which the release carries
                          -> a `DriftReport`, which the report of the validate stage holds

Only the train split counts: it is what a model learns from. Held-out rows may come from elsewhere, and the gate looks
at them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from params import HubRefusedError, TransientError
from params.foundation.artifacts import Artifacts
from params.schema import Drift
from tasks.drift.comparison import Finding, find_drift
from tasks.drift.profile import MAX_BYTES, Profile
from tasks.drift.report import DriftReport, ExampleRow
from tasks.drift.rows import MAX_SAMPLED, ComparedColumns, read_sampled_rows, scan, text_of, without_identifiers
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from trainer.data.shards import ROW_ID

if TYPE_CHECKING:
    from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)
_MAX_EXAMPLES = 5
_MAX_NAMED = 1000
_MAX_TEXT = 240
_PATIENCE_S = 15.0
"""How long to wait for each answer of the Hub if the run can do without it."""
_PUBLIC = "a public release has one if the recipe sets validation.drift"


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
    """Write the profile into `folder`, which holds the valid rows and will be `Artifacts.validated`, and compare.

    Return None if the recipe turns this off.

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

    must_answer = drift.on_drift == "fail"
    reference, revision, reason = _fetch(artifacts, repo_id=repo_id, endpoint=endpoint, must_answer=must_answer)
    report = DriftReport(
        status="no_reference",
        reason=reason,
        repo_id=repo_id,
        revision=revision,
        confidence=drift.confidence,
        min_confidence_fall=drift.min_confidence_fall,
        identifiers=columns.identifiers,
    )
    if reference is not None and reference.content != profile.content:
        learned = ", ".join(reference.content)
        report = report.model_copy(update={"reason": f"{revision} learned from other columns: {learned}"})
    elif reference is not None:
        is_new, looked_at = reference.is_new(smallest.hashes)
        report = report.model_copy(update={"status": "nothing_new", "looked_at": looked_at})
        if is_new.any():
            new_ids = smallest.row_ids[is_new][:MAX_SAMPLED]
            report = _compared(report, reference, rows, columns, new_ids, workers=workers, drift=drift, seed=seed)
    logger.info("validate: %s", report.sentence)
    return report


def _fetch(
    artifacts: Artifacts, *, repo_id: str, endpoint: str, must_answer: bool
) -> tuple[Profile | None, str | None, str]:
    """Return the profile of the rows that the published model learned from, its tag or commit, and why either is not there.

    Raises:
        HubRefusedError, TransientError: the Hub refuses or gives no clear answer, and it `must_answer`.
    """
    from tasks.hub_client.connection import LOCAL, chosen_endpoint, local_hub_folder, open_repository

    nothing = None, None, f"no model was published yet as {repo_id}"
    path, revision = artifacts.data_profile.name, None
    try:
        if chosen_endpoint(endpoint) == LOCAL and not local_hub_folder(artifacts).exists():
            return nothing
        with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as opened:
            repository = opened if must_answer else replace(opened, timeout_s=_PATIENCE_S)
            head = repository.head()
            if head is None:
                return nothing
            revision = head.tag or head.commit
            content = repository.retry_until_clear(partial(repository.read, head.commit, path, max_bytes=MAX_BYTES))
    except (HubRefusedError, TransientError) as error:
        if must_answer:
            raise
        if revision is None or isinstance(error, TransientError):
            return None, None, f"the Hub did not say which model is published ({error.where}: {error.what})"
        return None, revision, f"{path} of {revision} cannot be read: {error.what}"
    profile, reason = None, f"{revision} of {repo_id} has no profile of its rows ({path}); {_PUBLIC}"
    try:
        profile = None if content is None else Profile.load(content)
    except ValueError as error:
        reason = f"{path} of {revision} cannot be read: {error}"
    return profile, revision, "" if profile else reason


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

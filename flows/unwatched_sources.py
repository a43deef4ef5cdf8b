"""Sources whose new rows DVC cannot see, when the flow reads them again: SQL, a branch of a Hub dataset, functions with `refresh`.

Every run of the flow does, unless an earlier run was interrupted before its training was finished: new rows would make
another run of it, and a training that is interrupted now and then would start at step 0 each time.
"""

from __future__ import annotations

import time
from typing import Final

from flows import dvc_stage
from flows.child_process import Logger
from params import DataError, EvergreenError, ModelError, RecipeError, load
from params.artifacts import Artifacts
from params.schema import Function, HubDataset, Sql
from tasks.ingestion.report import IngestReport
from tasks.stages import read_report

_GIVES_UP: Final = (DataError, ModelError, RecipeError)
"""Errors that the same rows would cause again."""
_UP_TO_TRAINING: Final = ("validate", "tokenize", "train")


def reads_again(artifacts: Artifacts, log: Logger) -> bool:
    """Whether the flow must run ingest although nothing that DVC watches has changed."""
    recipe = load(artifacts.recipe_path)
    source, limit_h = recipe.data.source, recipe.launch.keep_rows_hours
    if not _may_have_new_rows(source, artifacts):
        return False
    try:
        age_h = (time.time() - artifacts.rows_taken.stat().st_mtime) / 3600
    except FileNotFoundError:
        return True
    if not dvc_stage.is_stale(*(f"{stage}@{artifacts.recipe}" for stage in _UP_TO_TRAINING)):
        return True
    name = f"ingest@{artifacts.recipe}"
    if age_h > limit_h:
        log.warning("%s: gave up the unfinished run of %.1f hours ago (launch.keep_rows_hours)", name, age_h)
        return True
    log.info(
        "%s: keeps the rows of %.1f hours ago, because the run with them is not finished; reads the source again when it "
        "is, after %g hours (launch.keep_rows_hours), or with --force",
        name,
        age_h,
        limit_h,
    )
    return False


def _may_have_new_rows(source: object, artifacts: Artifacts) -> bool:
    """Whether a source may have other rows than those of the last ingest, although no file has changed."""
    if isinstance(source, HubDataset) and not source.is_pinned:
        from tasks.ingestion.hub_dataset import HubSource

        report = artifacts.report("ingest")
        return not report.exists() or HubSource(source).revision != read_report(artifacts, IngestReport).revision
    return isinstance(source, Sql) or (isinstance(source, Function) and source.refresh)


def record(stage: str, artifacts: Artifacts, error: EvergreenError | None) -> None:
    """Record that a stage has run, with its error if it failed: rows are kept from ingest until train."""
    if stage == "ingest" and error is None:
        artifacts.rows_taken.parent.mkdir(parents=True, exist_ok=True)
        artifacts.rows_taken.touch()
    elif (stage == "train" and error is None) or isinstance(error, _GIVES_UP):
        artifacts.rows_taken.unlink(missing_ok=True)

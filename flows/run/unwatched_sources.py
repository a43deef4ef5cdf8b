"""Sources whose new rows DVC cannot see, when the flow reads them again.

These are SQL, a branch of a Hub dataset, and functions and imported files with `refresh`.

Every run of the flow does, unless an earlier run was interrupted before its training was finished: new rows would make
another run of it, and a training that is interrupted now and then would start at step 0 each time.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Sequence
from typing import Final

from flows import child_process
from flows.child_process import Logger
from flows.dvc_project import stage as dvc_stage
from params import DataError, EvergreenError, ModelError, RecipeError
from params.foundation.artifacts import Artifacts
from params.sections.data import RowsFromFiles, RowsFromHubDataset, RowsFromSql, Source
from tasks.ingestion.report import IngestReport, revisions_by_source
from tasks.recipes.loading import load
from tasks.stages import read_report

_GIVES_UP: Final = (DataError, ModelError, RecipeError)  # errors that the same rows would cause again
_UP_TO_TRAINING: Final = ("validate", "tokenize", "train")


def update_imports_and_check_ingest(artifacts: Artifacts, log: Logger, *, force: bool = False) -> bool:
    """Whether the flow must run ingest although nothing that DVC watches has changed.

    Imported files are brought up to date here; DVC then sees whether they have changed. With `force`, ingest runs in any case, and
    takes new rows even if a run with others is unfinished.
    """
    recipe = load(artifacts.recipe_path)
    unwatched = [source for source in recipe.data.all_sources.values() if _is_unwatched(source)]
    if not unwatched:
        return force
    name, limit_h = f"ingest@{artifacts.recipe}", recipe.launch.keep_rows_hours
    age_h = None if force else _age_of_kept_rows_h(artifacts)
    if age_h is not None and age_h <= limit_h:
        until = f"reads the source again when it is, after {limit_h:g} hours (launch.keep_rows_hours), or with --force"
        log.info("%s: keeps the rows of %.1f hours ago, because their run is not finished; %s", name, age_h, until)
        return False
    others = _update_imports(unwatched, artifacts, log)
    if not others:
        return force
    if not force and not _may_have_new_rows(others, artifacts, log):
        return False
    if age_h is not None:
        log.warning("%s: gave up the unfinished run of %.1f hours ago (launch.keep_rows_hours)", name, age_h)
    return True


def fetch_missing_source_files(artifacts: Artifacts, log: Logger) -> None:
    """Bring files of the source that do not exist locally, as in a new clone: the check of a recipe reads some of its rows."""
    sources = [one for one in load(artifacts.recipe_path).data.all_sources.values() if isinstance(one, RowsFromFiles)]
    patterns = [pattern for source in sources for pattern in source.patterns.values()]
    if all(any(glob.iglob(pattern, recursive=True)) for pattern in patterns):  # noqa: PTH207
        return
    if any(source.refresh for source in sources):
        update_imports_and_check_ingest(artifacts, log)
    else:
        dvc_stage.restore_inputs(f"ingest@{artifacts.recipe}")


def _age_of_kept_rows_h(artifacts: Artifacts) -> float | None:
    """How many hours ago the rows of an unfinished run were read; None if no run is unfinished."""
    try:
        age_h = (time.time() - artifacts.rows_taken.stat().st_mtime) / 3600
    except FileNotFoundError:
        return None
    is_unfinished = dvc_stage.is_any_stage_stale(*(f"{stage}@{artifacts.recipe}" for stage in _UP_TO_TRAINING))
    return age_h if is_unfinished else None


def _is_unwatched(source: Source) -> bool:
    """Whether a source may have new rows although no file has changed; others have those of the last ingest."""
    if isinstance(source, RowsFromHubDataset):
        return not source.is_pinned
    return isinstance(source, RowsFromSql) or source.refresh


def _update_imports(sources: Sequence[Source], artifacts: Artifacts, log: Logger) -> list[Source]:
    """Bring imported files up to date, if there are any among these sources, and return the others."""
    others: list[Source] = [source for source in sources if not isinstance(source, RowsFromFiles)]
    if len(others) < len(sources):
        module = "flows.dvc_project.update"
        child_process.run_python_module(module, [artifacts.recipe], artifacts, log, name="dvc update")
    return others


def _may_have_new_rows(sources: Sequence[Source], artifacts: Artifacts, log: Logger) -> bool:
    """Whether sources that are no files may have others than those of the last ingest; of branches on a Hub, their commits tell."""
    branches = [source for source in sources if isinstance(source, RowsFromHubDataset)]
    return len(branches) < len(sources) or _have_new_commit(branches, artifacts, log)


def _have_new_commit(branches: Sequence[RowsFromHubDataset], artifacts: Artifacts, log: Logger) -> bool:
    from tasks.ingestion.hub_dataset import HubSource

    report = artifacts.report("ingest")
    try:  # it is not in a new clone, and of an earlier run if another worker has recorded one since
        dvc_stage.restore_inputs(f"publish@{artifacts.recipe}", report)
    except EvergreenError as error:
        log.warning("ingest@%s: may read the dataset again: %s", artifacts.recipe, error)
    if not report.exists():
        return True
    found = read_report(artifacts, IngestReport)
    return not {HubSource(branch).revision for branch in branches} <= {
        *revisions_by_source(found.revision).values(),
        found.corpus_revision,
    }


def keep_rows_until_trained(stage: str, artifacts: Artifacts, error: EvergreenError | None) -> None:
    """Record that a stage has run, with its error if it failed: rows are kept from ingest until train."""
    if stage == "ingest" and error is None:
        artifacts.rows_taken.parent.mkdir(parents=True, exist_ok=True)
        artifacts.rows_taken.touch()
    elif (stage == "train" and error is None) or isinstance(error, _GIVES_UP):
        artifacts.rows_taken.unlink(missing_ok=True)

"""Pin the published model that the training starts from, and which of the valid rows it has learned from.

    the head of publish.repo_id -> validated/start/    see trainer/start.py

The stage runs only if the rows, or what it reads of the recipe, have changed. So a release makes no later stage stale by itself, and
every later stage, on any machine, starts from the same files.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from params import ModelError
from params.foundation.artifacts import Artifacts, link_or_copy
from params.schema import Drift, Replay, Start
from tasks.digests import PROVENANCE, ReleaseRecord
from tasks.drift.known import MAX_FILE_BYTES, find_known, read_content_hashes, write_hashes
from tasks.drift.rows import ComparedColumns
from tasks.hub_client.connection import fetch_model_once, open_repository, resolve_hub_endpoint
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from trainer.objectives.bases.objective import Objective
from trainer.start import KNOWN, MODEL, RECORD

logger = logging.getLogger(__name__)
_PUBLIC: Final = "the release of a public repository says it only if the recipe sets validation.drift"


def pin_start(
    artifacts: Artifacts,
    folder: Path,
    workers: ShardWorkers,
    *,
    start: Start,
    replay: Replay | None,
    drift: Drift,
    objective: Objective[Any],
    name: str,
    repo_id: str,
    endpoint: str,
) -> None:
    """Pin the start of a training for the objective `name`: write `start/` into `folder`, which holds the valid rows and will be `Artifacts.validated`, and what a later run knows the rows by.

    Raises:
        ModelError: the published model was trained for another objective, or `replay` needs to know more of its rows than it says.
        HubRefusedError, TransientError: the Hub does not say which model is published.
    """
    target, pinned = folder / artifacts.start.name, None
    target.mkdir()
    if start != "base":
        rows = SplitRows(folder / artifacts.rows.name / "train")
        columns = ComparedColumns.of(rows, objective, drift.ignore)
        ids, hashes = read_content_hashes(rows, columns, workers)
        write_hashes(hashes, columns, folder / artifacts.known_rows.name)
        with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as repository:
            if (head := repository.head()) is None:
                logger.info(
                    "validate: no model was published yet as %s: the training starts from the recipe's own", repo_id
                )
            else:
                where = f"{repo_id}@{head.tag or head.commit}"
                _copy_model(fetch_model_once(artifacts, repository, head.commit), target / MODEL, where, name)
                own = {"commit": head.commit, "tag": head.tag, "weights": head.weights}
                pinned = {"endpoint": resolve_hub_endpoint(endpoint), "repo_id": repo_id, **own}
                logger.info("validate: the training starts from %s", where)
                if replay:
                    paths = (artifacts.known_rows.name, artifacts.data_profile.name)
                    reads = [partial(repository.read, head.commit, path, max_bytes=MAX_FILE_BYTES) for path in paths]
                    files = [repository.retry_until_clear(read) for read in reads]
                    try:
                        known = find_known(hashes, columns, *files)
                    except ValueError as error:
                        what = f"new rows cannot be told from known ones: {where}: {error}"
                        fix = f"remove it for one run, whose release says it; {_PUBLIC}"
                        raise ModelError.at("training.replay", what, fix) from error
                    np.save(target / KNOWN, np.sort(ids[known]))
                    logger.info("validate: %d of %d train rows are known to %s", known.sum(), len(known), where)
    (target / RECORD).write_text(json.dumps(pinned, indent=1) + "\n", encoding="utf-8")


def _copy_model(found: Path, target: Path, where: str, name: str) -> None:
    fix = "set model.start: base for one run, or publish to another repository"
    try:
        made = ReleaseRecord.of(found)
    except ValueError as error:
        raise ModelError(where, f"its {PROVENANCE} cannot be used: {error}", fix) from error
    if made is None or made.objective.name != name:
        what = f"it was trained for {made.objective.name}, not {name}" if made else f"it has no {PROVENANCE}"
        raise ModelError(where, f"the training cannot start from it: {what}", fix)
    for path in sorted(found.rglob("*")):
        if path.is_file() and path.name != PROVENANCE:  # which says how it was made, not what it is
            copy = target / path.relative_to(found)
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, copy)

"""Pin the published model that the training starts from, and which of the valid rows it has learned from.

    the head of publish.repo_id -> validated/start/    see trainer/start.py

The stage runs only if the rows, or what it reads of the recipe, have changed. So a release makes no later stage stale by itself, and
every later stage, on any machine, starts from the same files.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from params import ModelError
from params.foundation.artifacts import Artifacts, link_or_copy
from params.schema import ObjectiveChoice, Start
from tasks.digests import PROVENANCE, ReleaseRecord
from tasks.hub_client.connection import fetch_model_once, open_repository, resolve_hub_endpoint
from trainer.start import MODEL, RECORD, PinnedStart

logger = logging.getLogger(__name__)


def pin_start(
    artifacts: Artifacts, folder: Path, *, start: Start, objective: ObjectiveChoice, repo_id: str, endpoint: str
) -> PinnedStart | None:
    """Write `folder`, which will be `Artifacts.start`, and return the release that the training starts from, if it does.

    Raises:
        ModelError: the published model was trained for another objective.
        HubRefusedError, TransientError: the Hub does not say which model is published.
    """
    folder.mkdir()
    pinned = None if start == "base" else _download_head(artifacts, folder / MODEL, objective, repo_id, endpoint)
    if start != "base" and pinned is None:
        logger.info(
            "validate: no model was published yet as %s: the training starts from the recipe's own model", repo_id
        )
    record = pinned.model_dump(mode="json") if pinned else None
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return pinned


def _download_head(
    artifacts: Artifacts, target: Path, objective: ObjectiveChoice, repo_id: str, endpoint: str
) -> PinnedStart | None:
    with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as repository:
        head = repository.head()
        if head is None:
            return None
        found = fetch_model_once(artifacts, repository, head.commit)
    where, fix = (
        f"{repo_id}@{head.tag or head.commit}",
        "set model.start: base for one run, or publish to another repository",
    )
    try:
        made = ReleaseRecord.of(found)
    except ValueError as error:
        raise ModelError(where, f"its {PROVENANCE} cannot be used: {error}", fix) from error
    if made is None or made.objective.name != objective.name:
        what = (
            f"its model was trained for {made.objective.name}, not {objective.name}"
            if made
            else f"it has no {PROVENANCE}"
        )
        raise ModelError(where, f"the training cannot start from it: {what}", fix)
    for path in sorted(found.rglob("*")):
        if path.is_file() and path.name != PROVENANCE:  # which says how it was made, not what it is
            copy = target / path.relative_to(found)
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, copy)
    logger.info("validate: the training starts from %s", where)
    return PinnedStart(
        endpoint=resolve_hub_endpoint(endpoint), repo_id=repo_id, commit=head.commit, tag=head.tag, weights=head.weights
    )

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
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from params import ModelError
from params.foundation.artifacts import Artifacts, link_or_copy
from params.schema import Replay, Start
from params.sections.rows import Drift
from tasks.digests import PROVENANCE, ReleaseRecord
from tasks.drift.known import MAX_FILE_BYTES, find_known, hash_shards, write_hashes
from tasks.drift.rows import ComparedColumns
from tasks.hub_client.connection import fetch_model_once, open_repository, resolve_hub_endpoint
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from trainer.objectives.bases.objective import Objective
from trainer.start import KNOWN, MODEL, RECORD, ReleaseReference

if TYPE_CHECKING:
    from tasks.hub_client.repository import HubRepository

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
    """Write `start/` into `folder`, which holds the valid rows and will be `Artifacts.validated`, and by what a later run knows these rows.

    `name` is that of the objective.

    Raises:
        ModelError: the published model was trained for another objective, or `replay` needs to know more of its rows than it says.
        HubRefusedError, TransientError: the Hub does not say which model is published, or no longer has it.
    """
    target, pinned = folder / artifacts.start.name, None
    target.mkdir()
    if start != "base":
        rows = SplitRows(folder / artifacts.rows.name / "train")
        columns = ComparedColumns.of(rows, objective, drift.ignore)
        ids, hashes = map(np.concatenate, zip(*hash_shards(rows, columns, workers), strict=True))
        write_hashes(hashes, columns, folder / artifacts.known_rows.name)
        pinned = _choose_release(artifacts, repo_id, endpoint)
        if pinned is None:
            logger.info("validate: the training starts from the recipe's own model: none is published as %s", repo_id)
        else:
            logger.info("validate: the training starts from %s", pinned.name)
            with open_repository(artifacts, repo_id=pinned.repo_id, endpoint=pinned.endpoint) as repository:
                _copy_model(fetch_model_once(artifacts, repository, pinned.commit), target / MODEL, pinned.name, name)
                if replay:
                    known = _find_known_rows(artifacts, repository, pinned, hashes, columns)
                    np.save(target / KNOWN, np.sort(ids[known]))
                    logger.info("validate: it has learned from %d of the %d train rows", known.sum(), len(known))
    record = pinned.model_dump(mode="json") if pinned else None
    (target / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _choose_release(artifacts: Artifacts, repo_id: str, endpoint: str) -> ReleaseReference | None:
    """Return the published release; where a release is made again, the one that it has started from."""
    if artifacts.start_to_pin.exists():
        found = json.loads(artifacts.start_to_pin.read_bytes())
        return None if found is None else ReleaseReference.model_validate(found)
    with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as repository:
        head = repository.head()
    return ReleaseReference(endpoint=resolve_hub_endpoint(endpoint), repo_id=repo_id, **vars(head)) if head else None


def _find_known_rows(
    artifacts: Artifacts,
    repository: HubRepository,
    pinned: ReleaseReference,
    hashes: NDArray[np.uint64],
    columns: ComparedColumns,
) -> NDArray[np.bool_]:
    def read(path: Path) -> bytes | None:
        ask = partial(repository.read, pinned.commit, path.name, max_bytes=MAX_FILE_BYTES)
        return repository.retry_until_clear(ask)

    try:
        return find_known(hashes, columns, read(artifacts.known_rows), read(artifacts.data_profile))
    except ValueError as error:
        what = f"new rows cannot be told from those that {pinned.name} has learned from: {error}"
        raise ModelError.at(
            "training.replay", what, f"remove it for one run, whose release says it; {_PUBLIC}"
        ) from error


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

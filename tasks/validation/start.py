"""Pin the published model that the training starts from, and which of the valid rows it has learned from.

    the head of publish.repo_id -> validated/start/          see trainer/start.py
                                   validated/start/record/   what the release says of itself and of the rows it has learned from

What is published is asked only if the rows have changed, or what else decides the start (tasks.validation.start_choice). So neither a
release nor another suite makes a training stale, and every later stage, on any machine, starts from the same files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from params import ModelError
from params.foundation.artifacts import KNOWN_ROWS, PROFILE, Artifacts, link_or_copy, write_array
from params.schema import Replay, Start
from tasks.digests import PROVENANCE, ReleaseRecord
from tasks.hub_client.connection import LOCAL, fetch_model_once, open_repository, resolve_hub_endpoint
from tasks.hub_client.token import require_token_for_hub
from tasks.known_rows.hashes import find_known_rows_of_shards, read_hashes
from tasks.known_rows.rows import ComparedColumns
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.validation.start_choice import choose_start
from trainer.objectives.bases.objective import Objective
from trainer.start import KNOWN, MODEL, RECORD

logger = logging.getLogger(__name__)
_RECORDS: Final = frozenset({PROVENANCE, PROFILE, KNOWN_ROWS})
"""The files of a release that say how it was made."""
_PUBLIC: Final = "the release of a public repository says it only if the recipe sets validation.drift"


def pin_start(
    artifacts: Artifacts,
    folder: Path,
    workers: ShardWorkers,
    *,
    start: Start,
    replay: Replay | None,
    objective: Objective[Any],
    name: str,
    repo_id: str,
    endpoint: str,
) -> None:
    """Write `start/` into `folder`, which holds the valid rows and will be `Artifacts.validated`, and which of them it has learned from.

    `name` is that of the objective.

    Raises:
        ModelError: the published model was trained for another objective, or `replay` needs to know more of its rows than it says.
        HubRefusedError, TransientError: the Hub does not say which model is published, or no longer has it.
    """
    target = folder / artifacts.start.name
    target.mkdir()
    choice: Any = {"start": start, "objective": objective, "repo_id": repo_id, "endpoint": endpoint}
    pinned = choose_start(artifacts, folder / artifacts.rows.name, **choice)
    if start != "base":
        if pinned is None:
            if (hub := resolve_hub_endpoint(endpoint)) != LOCAL:
                require_token_for_hub(hub)  # without one, a private repository is as if it were not there
            logger.info("validate: the training starts from the recipe's own model")
        else:
            logger.info("validate: the training starts from %s", pinned.name)
            with open_repository(artifacts, repo_id=pinned.repo_id, endpoint=pinned.endpoint) as repository:
                found = fetch_model_once(artifacts, repository, pinned.commit)
            until = _copy_model(found, target / MODEL, pinned.name, name)
            _copy_files(found, _RECORDS, target / artifacts.start_record.name)
            pinned = pinned.model_copy(update={"learned_until": until})
            if replay:
                rows = SplitRows(folder / artifacts.rows.name / "train")
                ids = _find_known_rows(found, rows, objective, pinned.name, workers)
                write_array(target / KNOWN, ids)
                logger.info("validate: it has learned from %d of the %d train rows", len(ids), len(rows))
    record = pinned.model_dump(mode="json") if pinned else None
    (target / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _find_known_rows(
    release: Path, rows: SplitRows, objective: Objective[Any], name: str, workers: ShardWorkers
) -> NDArray[np.int64]:
    """Return the row_ids of the rows that a release has learned from, whose files are in a folder, (K,) ascending."""
    columns = ComparedColumns.of(rows, objective, ())
    try:
        known = read_hashes(release, columns, needs_all=True)
    except ValueError as error:
        what = f"new rows cannot be told from those that {name} has learned from: {error}"
        fix = f"remove it for one run, whose release says it; {_PUBLIC}"
        raise ModelError.at("training.replay", what, fix) from error
    ids, is_known = find_known_rows_of_shards(rows, columns, known, workers)
    return np.sort(ids[is_known])


def _copy_model(found: Path, target: Path, where: str, name: str) -> str:
    """Copy what a release computes; return until which time it has learned."""
    fix = "set model.start: base for one run, or publish to another repository"
    try:
        made = ReleaseRecord.of(found)
    except ValueError as error:
        raise ModelError(where, f"its {PROVENANCE} cannot be used: {error}", fix) from error
    if made is None or made.objective.name != name:
        what = f"it was trained for {made.objective.name}, not {name}" if made else f"it has no {PROVENANCE}"
        raise ModelError(where, f"the training cannot start from it: {what}", fix)
    files = {path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()}
    _copy_files(found, files - _RECORDS, target)
    return made.data.learned_until


def _copy_files(found: Path, names: Iterable[str], target: Path) -> None:
    for name in sorted(names):
        if (found / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(found / name, target / name)

"""Which published model a training starts from, and what has decided it.

    runs/<recipe>/start.json    in git: any worker that validates the same rows again chooses the same release

The stage validates again for many reasons that are none to train again, such as another suite. Only other rows, another objective, start
or repository choose anew. So does a release that people have rolled back meanwhile, and one that the Hub no longer has.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pydantic

from params.foundation.artifacts import SPLITS, Artifacts, write_text_atomically
from params.schema import Start
from tasks.hub_client.connection import open_repository, resolve_hub_endpoint
from tasks.hub_client.main_history import MainHistory
from tasks.hub_client.repository import HubRepository
from trainer.data.shards import Manifest
from trainer.objectives.bases.objective import Objective
from trainer.start import ReleaseReference

logger = logging.getLogger(__name__)


class StartChoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")
    decided_by: str
    """SHA-256 of what has decided it."""
    release: ReleaseReference | None
    """None: no model was published, and the training starts from the recipe's own."""


def choose_start(
    artifacts: Artifacts,
    rows: Path,
    *,
    start: Start,
    objective: Objective[Any],
    repo_id: str,
    endpoint: str,
) -> ReleaseReference | None:
    """Return the release that a training on the valid rows in a folder starts from; None if that is the recipe's own model.

    It is the one of an earlier run that nothing has decided anew, or else the published one. Where a release is made again, it is the one
    that this has started from.

    Raises:
        HubRefusedError, TransientError: the Hub does not say which model is published.
    """
    if start == "base":
        _write(artifacts, None)
        return None
    decided_by = _hash_what_decides(rows, start, objective, repo_id, endpoint)
    if artifacts.start_to_pin.exists():
        found = json.loads(artifacts.start_to_pin.read_bytes())
        release = None if found is None else ReleaseReference.model_validate(found)
    else:
        with open_repository(artifacts, repo_id=repo_id, endpoint=endpoint) as repository:
            kept = _read(artifacts)
            if kept and kept.decided_by == decided_by and _may_be_kept(kept.release, repository):
                release = kept.release
                logger.info("validate: rows and recipe have decided the start before, in %s", artifacts.start_choice)
            else:
                release = _published(repository, endpoint)
                if release is None:
                    logger.info("validate: no model is published as %s", repo_id)
    _write(artifacts, StartChoice(decided_by=decided_by, release=release))
    return release


def _published(repository: HubRepository, endpoint: str) -> ReleaseReference | None:
    head = repository.head()
    if head is None:
        return None
    return ReleaseReference(endpoint=resolve_hub_endpoint(endpoint), repo_id=repository.id, **vars(head))


def _may_be_kept(release: ReleaseReference | None, repository: HubRepository) -> bool:
    """Whether a training may go on from what an earlier run has chosen."""
    if release is None:
        return True
    if not repository.holds(release.commit):
        logger.warning("validate: the Hub no longer has %s, from which the last training started", release.name)
        return False
    rolled_back = MainHistory.read(repository).find_rolled_back([release.weights])
    for one in rolled_back.values():
        logger.warning("validate: the last training started from %s", one.sentence)
    return not rolled_back


def _hash_what_decides(rows: Path, start: Start, objective: Objective[Any], repo_id: str, endpoint: str) -> str:
    shards = {split: [(shard.sha256, shard.weight) for shard in Manifest.read(rows / split).shards] for split in SPLITS}
    learned = [type(objective).__module__, objective.options.model_dump(mode="json")]
    deciding = [shards, learned, start, resolve_hub_endpoint(endpoint), repo_id]
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def _read(artifacts: Artifacts) -> StartChoice | None:
    """Return the choice of the last run; None if there is none, or if it cannot be read: then it is made anew."""
    try:
        found = json.loads(artifacts.start_choice.read_bytes())
        return None if found is None else StartChoice.model_validate(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("validate: %s cannot be read: %s", artifacts.start_choice, error)
        return None


def _write(artifacts: Artifacts, choice: StartChoice | None) -> None:
    content = choice.model_dump(mode="json") if choice else None
    artifacts.start_choice.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(artifacts.start_choice, json.dumps(content, indent=1) + "\n")

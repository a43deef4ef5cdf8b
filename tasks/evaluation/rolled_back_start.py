"""A model whose start was rolled back: what people distrust in a release is in the weights of what was trained from it, too.

Such a candidate is not published. A rollback can come at any time, so evaluate asks, and publish asks again. With a start that was rolled back, the
flow runs validate again, which pins what is published then.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from params.foundation.artifacts import Artifacts
from tasks.digests import ReleaseRecord
from tasks.hub_client.release_log import RolledBackCommit, find_rolled_back_commit
from trainer.start import RECORD, ReleaseReference, read_pinned_start

if TYPE_CHECKING:
    from tasks.hub_client.repository import HubRepository


def read_start_of_training(artifacts: Artifacts) -> ReleaseReference | None:
    """Return the release that the training started from; None if it started from the recipe's own model, or there was none."""
    path = artifacts.report("train")
    started_from = json.loads(path.read_bytes()).get("started_from") if path.exists() else None
    return ReleaseReference.model_validate(started_from) if started_from else None


def list_starts(artifacts: Artifacts, start: ReleaseReference | None) -> tuple[str, ...]:
    """Return the commits of the releases that a training from `start` goes back to, the newest first."""
    if start is None:
        return ()
    is_pinned = (artifacts.start / RECORD).exists() and read_pinned_start(artifacts, "champion") == start
    record = ReleaseRecord.of(artifacts.start_record) if is_pinned else None
    return (start.commit, *(record.starts if record else ()))


def why_start_is_distrusted(artifacts: Artifacts, repository: HubRepository) -> str | None:
    """Return why the trained model is not to be published: a release that it goes back to was rolled back; None if none was."""
    start = read_start_of_training(artifacts)
    found = find_rolled_back_commit(repository, list_starts(artifacts, start))
    return describe_rolled_back_start(artifacts, start, found) if start and found else None


def describe_rolled_back_start(artifacts: Artifacts, start: ReleaseReference, found: RolledBackCommit) -> str:
    """Say which start of a training was rolled back, and how the next training gets another one."""
    again = f"`dvc repro --single-item --force validate@{artifacts.recipe}`"
    if found.commit == start.commit:
        fix = f"the next run of the flow starts from what is published then; without the flow, {again} does so"
        return f"the training started from {found.sentence}; {fix}"
    fix = "roll back to a release that does not, or set model.start: base for one run"
    return f"the training started from {start.name}, which goes back to {found.sentence}; {fix}"

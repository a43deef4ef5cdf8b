"""Continue a run on this machine whose checkpoints another machine mirrors to a Hub: before a training, and as `evergreen fetch`.

The last checkpoint of the branch is downloaded into the run's folder, whole or not at all, and only if it is of the same run:
same recipe, tokens and code. The training then resumes from it.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from params import CheckpointError, DataError, HubRefusedError, RecipeError, TransientError
from params.foundation.artifacts import Artifacts, translate_disk_errors
from params.foundation.file_lock import hold_file_lock
from params.schema import Publish
from tasks.recipes.loading import load
from trainer.checkpoints import sealed
from trainer.checkpoints.resume import describe_identity_differences
from trainer.job import Job

if TYPE_CHECKING:
    from tasks.mirror.branch import CheckpointsBranch

logger = logging.getLogger(__name__)

_PATIENCE_S = 60.0
"""The longest time that a training waits for an answer of the Hub before it starts."""


def fetch_last_checkpoint(recipe_path: Path) -> None:
    """Download the last checkpoint of a recipe's run, unless this machine has reached that step.

    Raises:
        CheckpointError: the checkpoint on the branch is damaged, or of another run.
        HubRefusedError: no access, or no checkpoint.
        TransientError: the Hub gives no clear answer, or a training of this recipe is running.
    """
    recipe = load(recipe_path)
    artifacts = Artifacts(recipe_path.stem)
    if recipe.training.resume != "auto":
        what = f"is `{recipe.training.resume}`, so a training would not resume from what is fetched"
        raise RecipeError("training.resume", what, "set it to `auto`")
    if not artifacts.tokens.exists():
        fix = f"run `evergreen tokenize {recipe_path}` and the stages before it"
        raise DataError(str(artifacts.tokens), "there are no tokens, which are part of the run's identity", fix)
    with hold_file_lock(artifacts.train_lock, f"a training of {artifacts.recipe}"):
        _fetch_newest(artifacts, Job.of(recipe, artifacts), recipe.publish)


def fetch_before_training(artifacts: Artifacts, job: Job, publish: Publish) -> None:
    """Before a training, fetch what another machine has reached of this run; without an answer, go on with what exists locally."""
    if job.launch.mirror == "none" or job.training.resume != "auto":
        return
    try:
        _fetch_newest(artifacts, job, publish, patience_s=min(publish.timeout_s, _PATIENCE_S))
    except (CheckpointError, HubRefusedError) as error:
        logger.info("train: takes nothing from the Hub: %s: %s", error.where, error.what)
    except TransientError as error:
        logger.warning("train: goes on with what exists locally, because the Hub gives no answer: %s", error)


def _fetch_newest(artifacts: Artifacts, job: Job, publish: Publish, *, patience_s: float | None = None) -> None:
    """Fetch the run's last checkpoint; with `patience_s`, only if the Hub answers within so many seconds."""
    from tasks.hub_client.connection import open_repository
    from tasks.mirror.branch import CheckpointsBranch, repository_with_checkpoint_timeouts

    staging = job.folder / ".fetched"
    with (
        translate_disk_errors(job.folder),
        open_repository(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=True) as opened,
    ):
        if patience_s is not None:
            replace(opened, timeout_s=patience_s).retry_until_clear(opened.refs)
        repository = repository_with_checkpoint_timeouts(opened, publish, "fetch")
        branch = CheckpointsBranch(repository, publish.private)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            repository.retry_until_clear(lambda: _fetch(branch, job, staging))
        finally:
            shutil.rmtree(staging)


def _fetch(branch: CheckpointsBranch, job: Job, staging: Path) -> None:
    """Make one attempt; it can be repeated whatever it raises."""
    from tasks.mirror.branch import BEST

    newest = None
    for mirrored in branch.checkpoints():
        if mirrored.identity == job.identity:
            break
        newest = newest or mirrored
    else:
        if newest is None:
            fix = "train on the other machine with `launch.mirror: last` or `all`"
            raise HubRefusedError(branch.where, "there is no checkpoint", fix)
        what = f"is of another run: {describe_identity_differences(newest.identity, job.identity)}"
        fix = "use the recipe, data and code of the other machine, or train here from the start"
        raise CheckpointError(f"{branch.where}, {newest.folder}", what, fix)
    own = sealed.find_newest_setting_broken_aside(job.folder, sealed.identity_to_json(job.identity))
    if own is not None and sealed.read_checkpoint_step(own) >= mirrored.step:
        message = "fetch: nothing to do: this machine is at step %d of run %s, the branch at step %d"
        logger.info(message, sealed.read_checkpoint_step(own), job.folder.name, mirrored.step)
        return
    checkpoint = branch.load_sealed(mirrored.folder, mirrored.commit, staging)
    if found := sealed.find_checkpoint_defect(checkpoint):
        raise branch.damaged(mirrored.folder, found)
    # As in a training, the best weights come before the checkpoint that refers to them.
    if f"{BEST}/{sealed.MANIFEST}" in branch.repository.tree(mirrored.commit):
        best = branch.load_sealed(BEST, mirrored.commit, staging)
        if (best / sealed.IDENTITY).read_text(encoding="utf-8") == sealed.identity_to_json(job.identity):
            step = json.loads((best / sealed.BEST_NOTE).read_text(encoding="utf-8"))["step"]
            if not isinstance(step, int):  # it becomes a part of a path
                raise branch.damaged(BEST, f"{sealed.BEST_NOTE} names no step")
            sealed.seal_and_rename(best, job.folder / f"best-{step}", "best")
    sealed.seal_and_rename(checkpoint, job.folder / f"checkpoint-{mirrored.step}")
    message = "fetch: step %d of run %s from %s (%s); `evergreen train` resumes from it"
    logger.info(message, mirrored.step, job.folder.name, branch.where, mirrored.folder)

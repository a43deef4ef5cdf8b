"""fetch: take up, on this machine, a run whose checkpoints another machine mirrors to a Hub.

The last checkpoint of the branch comes into the run's folder whole or not at all, and only if it is of the very run that
the recipe and the tokens of this machine give: the train stage then goes on from it as from one of its own.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from params import CheckpointError, DataError, HubRefusedError, RecipeError, load
from params.artifacts import Artifacts, storage_errors
from trainer.checkpoints.resume import differences
from trainer.checkpoints.sealed import (
    BEST_NOTE,
    IDENTITY,
    MANIFEST,
    damage,
    identity_text,
    newest_sound,
    seal,
    step_of,
    verify,
)
from trainer.job import Job
from trainer.runtime.lifetime import exclusive

if TYPE_CHECKING:
    from tasks.mirror.branch import Branch, Kept

logger = logging.getLogger(__name__)


def fetch(recipe_path: Path) -> None:
    """Download the last checkpoint of a recipe's run, unless this machine is as far.

    Raises:
        CheckpointError: what is on the branch is damaged, or of another run.
        HubRefusedError: no access, or nothing there.
        TransientError: the Hub gives no clear answer, or a training of this recipe is running.
    """
    recipe = load(recipe_path)
    artifacts = Artifacts(recipe_path.stem)
    if recipe.training.resume != "auto":
        what = f"is `{recipe.training.resume}`, so that a training would not go on from what is fetched"
        raise RecipeError("training.resume", what, "set it to `auto`")
    if not artifacts.tokens.exists():
        fix = f"run `python -m tasks tokenize {recipe_path}`, and what comes before it"
        raise DataError(str(artifacts.tokens), "the tokens are not there, and a part of what determines the run", fix)
    job = Job.plan(
        artifacts.checkpoints,
        seed=recipe.seed,
        objective=recipe.objective,
        model=recipe.model,
        training=recipe.training,
        launch=recipe.launch,
        metrics=recipe.evaluation.metrics,
        tokens=artifacts.tokens,
    )
    from tasks.hub_client.connection import open_hub
    from tasks.mirror.branch import Branch, retry_until_clear, within

    publish = recipe.publish
    staging = job.folder / ".fetched"
    with (
        exclusive(artifacts.train_lock, f"a training of {artifacts.recipe}"),
        storage_errors(job.folder),
        open_hub(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=True) as (api, _),
    ):
        branch = Branch(api, publish.repo_id, publish.private)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            retry_until_clear(
                branch,
                lambda: _fetch(branch, job, staging),
                within(publish.timeout_s),
                lambda said: logger.warning("fetch: %s", said),
            )
        finally:
            shutil.rmtree(staging)


def _fetch(branch: Branch, job: Job, staging: Path) -> None:
    """One attempt; whatever it raises, it can be run again."""
    from tasks.mirror.branch import BEST

    kept = _of_this_run(branch, job, staging)
    own = newest_sound(job.folder, identity_text(job.identity))
    if own is not None and step_of(own) >= kept.step:
        said = "fetch: nothing to do: this machine is at step %d of run %s, the branch at step %d"
        logger.info(said, step_of(own), job.folder.name, kept.step)
        return
    checkpoint = _sound(branch, kept.place, kept.commit, staging)
    if found := damage(checkpoint):
        raise _damaged(branch, kept.place, found)
    # As in a training, the best weights are there before the checkpoint that knows of them.
    if f"{BEST}/{MANIFEST}" in branch.files(kept.commit):
        best = _sound(branch, BEST, kept.commit, staging)
        if (best / IDENTITY).read_text(encoding="utf-8") == identity_text(job.identity):
            step = json.loads((best / BEST_NOTE).read_text(encoding="utf-8"))["step"]
            seal(best, job.folder / f"best-{step}", "best")
    seal(checkpoint, job.folder / f"checkpoint-{kept.step}")
    said = "fetch: step %d of run %s from %s (%s); `python -m tasks train` goes on from it"
    logger.info(said, kept.step, job.folder.name, branch.where, kept.place)


def _of_this_run(branch: Branch, job: Job, staging: Path) -> Kept:
    """The newest checkpoint of this run on the branch."""
    newest = None
    for kept in branch.kept(staging):
        if kept.identity == job.identity:
            return kept
        newest = newest or kept
    if newest is None:
        what = "there is no checkpoint"
        raise HubRefusedError(branch.where, what, "train on the other machine with `launch.mirror: last` or `all`")
    what = f"is of another run: {differences(newest.identity, job.identity)}"
    fix = "bring recipe, data and code to what they were there; or train here from the start"
    raise CheckpointError(f"{branch.where}, {newest.place}", what, fix)


def _sound(branch: Branch, place: str, commit: str, staging: Path) -> Path:
    """A sealed folder of the branch, as its manifest says."""
    folder = branch.load_sealed(place, commit, staging)
    if found := verify(folder):
        raise _damaged(branch, place, found)
    return folder


def _damaged(branch: Branch, place: str, found: str) -> CheckpointError:
    from tasks.mirror.branch import NEXT

    return CheckpointError(f"{branch.where}, {place}", found, NEXT)

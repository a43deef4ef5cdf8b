"""Go on from a run that differs in its number of steps only, if that ends with the weights of one run with all of the steps.

That is so if nothing but the number of steps knows where the training ends: not the learning rate, for example, nor which steps are
evaluated. Of the checkpoints that the other run has left, one counts if the longer run would have come by it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from params.foundation.artifacts import Artifacts
from params.schema import ObjectiveChoice, Training
from trainer.checkpoints import sealed
from trainer.job import Job
from trainer.loop.batch import is_evaluated_on_the_way
from trainer.loop.extensions import is_trainer_of_ours
from trainer.objectives import build_objective, import_objective_class

logger = logging.getLogger(__name__)
STEPS: Final = ("training.epochs", "training.max_steps")
"""Names in a run's identity that say how long it is."""
ENDLESS_SCHEDULES: Final = {
    **dict.fromkeys(("constant", "greedy", "reduce_lr_on_plateau"), False),
    **dict.fromkeys(("constant_with_warmup", "inverse_sqrt"), True),
}
"""Schedules of transformers that do not depend on the last step, and whether they have a warm-up."""


def find_what_depends_on_steps(training: Training, objective: ObjectiveChoice) -> str | None:
    """Return what of a training depends on its number of steps besides its end, and what to write instead; None if nothing does."""
    found, share = [], "is a share of them (give a number of steps)"
    if training.lr_scheduler not in ENDLESS_SCHEDULES:
        found.append(f"`lr_scheduler: {training.lr_scheduler}` ends with the steps (`constant_with_warmup` does not)")
    if ENDLESS_SCHEDULES.get(training.lr_scheduler, True) and 0 < training.warmup_steps < 1:
        found.append(f"`warmup_steps` {share}")
    if training.eval_steps < 1:
        found.append(f"`eval_steps`, {training.eval_steps:g}, {share}")
    is_ours = is_trainer_of_ours(import_objective_class(objective.name).trainer_class)
    if training.trainer or training.callbacks or not is_ours:
        found.append("code of your own may depend on them")
    return " and ".join(found) or None


def find_runs_of_other_length(
    artifacts: Artifacts, identity: Mapping[str, str], *, by_recipe: bool = False
) -> Iterator[Path]:
    """Yield the folders of runs whose identity differs in the number of steps only; `by_recipe`, whatever their data and code."""

    def compared(found: Mapping[str, str]) -> dict[str, str]:
        return {k: value for k, value in found.items() if k not in STEPS and not (by_recipe and " " in k)}

    for path in (
        one for runs in (artifacts.checkpoints, artifacts.finished_run) for one in runs.glob(f"*/{sealed.IDENTITY}")
    ):
        try:
            other = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # it is damaged, or a training has just put it away
            continue
        if any(other.get(name) != identity.get(name) for name in STEPS) and compared(other) == compared(identity):
            yield path.parent


def find_continued_checkpoint(other: Path, job: Job, total: float) -> tuple[Path, Path | None] | None:
    """Return the newest valid checkpoint of another run that one of `total` steps comes by, and the best weights until then."""
    bests = [path for path in other.glob("best-*") if _step(path) <= total and _is_evaluated(_step(path), job)]
    best = max((path for path in bests if not sealed.find_manifest_mismatch(path)), key=_step, default=None)
    for checkpoint in sealed.list_checkpoints(other):
        if sealed.find_checkpoint_defect(checkpoint):
            continue
        state = _state(checkpoint)
        best_step = state.get("best_global_step")
        has_best = best_step is None or (best and _step(best) >= best_step)
        if has_best and _comes_by(_step(checkpoint), state["max_steps"], job, total):
            return checkpoint, best
    return None


def _comes_by(step: int, last_step: int, job: Job, total: float) -> bool:
    """Whether a run of `total` steps has the same state after a step as one that has ended with `last_step`."""
    if step >= total:
        return False
    at_once = getattr(build_objective(job.objective), "steps_per_round", 1)  # a run's last round may be a shorter one
    begun = step - step % at_once
    if begun != step and begun + at_once > min(last_step, total):
        return False
    # its last evaluation may be one that a longer run does not make, and ends a training that would stop early
    return step != last_step or (_is_evaluated(step, job) and not job.training.early_stopping_patience)


def _is_evaluated(step: int, job: Job) -> bool:
    return is_evaluated_on_the_way(step, job.training.eval_steps, job.training.arguments.get("eval_delay") or 0)


def continue_run_of_other_length(artifacts: Artifacts, job: Job) -> None:
    """Copy what a run of another length has reached into the folder of a job that has no checkpoint; say if that cannot be."""
    from trainer.loop.replay import steps_of

    others = [] if sealed.list_checkpoints(job.folder) else [*find_runs_of_other_length(artifacts, job.identity)]
    if not others:
        return
    total = steps_of(job)
    why = find_what_depends_on_steps(job.training, job.objective)
    found = [] if why else [find_continued_checkpoint(other, job, total) for other in others]
    usable = max((one for one in found if one), key=lambda pair: _step(pair[0]), default=None)
    if usable is None:
        message = "train: starts at step 0, although run %s differs in its number of steps only: %s"
        none = "this run comes by none of the checkpoints that are left of it"
        logger.info(message, others[0].name, f"in `training`, {why}" if why else none)
        return
    checkpoint, best = usable
    for place in filter(None, (best, checkpoint)):  # as in a training, the best weights come first
        staged = job.folder / sealed.STAGING / place.name
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(place, staged, ignore=shutil.ignore_patterns(sealed.MANIFEST))
        (staged / sealed.IDENTITY).write_text(sealed.identity_to_json(job.identity), encoding="utf-8")
        if place == checkpoint:
            position, stops_early = sealed.ResumePosition.load(place), _step(place) < _state(place)["max_steps"]
            replace(position, finished=position.finished and stops_early).save(staged)
        sealed.seal_and_rename(staged, job.folder / place.name)
    message = "train: goes on from step %d of run %s, which differs in its number of steps only"
    logger.info(message, _step(checkpoint), checkpoint.parent.name)


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _state(checkpoint: Path) -> dict[str, Any]:
    return dict(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8")))

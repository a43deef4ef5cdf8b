"""Go on from a run that differs in its number of steps only, if that ends with the weights of one run with all of the steps.

That is so if nothing but the number of steps knows where the training ends: not the learning rate, for example, nor which steps are
evaluated. Of the checkpoints that the other run has left, one counts if the longer run would have come by it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from params.schema import Training
from trainer.checkpoints import sealed

logger = logging.getLogger(__name__)
STEPS: Final = ("training.epochs", "training.max_steps")
"""Names in a run's identity that say how long it is."""
ENDLESS_SCHEDULES: Final = {
    "constant": False,
    "constant_with_warmup": True,
    "greedy": False,
    "inverse_sqrt": True,
    "reduce_lr_on_plateau": False,
}
"""Schedules of transformers that do not depend on the last step, and whether they have a warm-up."""


def find_what_depends_on_steps(training: Training, trainer_class: str) -> str | None:
    """Return what of a training depends on its number of steps besides its end, and what to write instead; None if nothing does."""
    found = []
    if training.lr_scheduler not in ENDLESS_SCHEDULES:
        found.append(f"`lr_scheduler: {training.lr_scheduler}` ends with the steps (`constant_with_warmup` does not)")
    if ENDLESS_SCHEDULES.get(training.lr_scheduler, True) and 0 < training.warmup_steps < 1:
        found.append("`warmup_steps` is a share of them (give a number of steps)")
    if training.eval_steps < 1:
        found.append(f"`eval_steps`, {training.eval_steps:g}, is a share of them (give a number of steps)")
    if training.trainer or training.callbacks or not trainer_class.startswith("trainer.loop."):
        found.append("code of your own may depend on them")
    return " and ".join(found) or None


def find_runs_of_other_length(
    places: Iterable[Path], identity: Mapping[str, str], *, by_recipe: bool = False
) -> Iterator[Path]:
    """Yield the folders of runs whose identity differs in the number of steps only; `by_recipe`, whatever their data and code."""

    def compared(found: Mapping[str, str]) -> dict[str, str]:
        return {k: value for k, value in found.items() if k not in STEPS and not (by_recipe and " " in k)}

    for path in places:
        try:
            other = json.loads((path / sealed.IDENTITY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if any(other.get(name) != identity.get(name) for name in STEPS) and compared(other) == compared(identity):
            yield path


def find_continued_checkpoint(
    other: Path, training: Training, total: float, round_steps: int = 1
) -> tuple[Path, Path | None] | None:
    """Return the newest valid checkpoint of another run that one of `total` steps comes by, and the best weights until then.

    `round_steps`: steps that an objective prepares together, of which a run's last ones may be fewer.
    """
    evaluated = int(training.eval_steps)
    bests = [path for path in other.glob("best-*") if _step(path) <= total and _step(path) % evaluated == 0]
    best = max(bests, key=_step, default=None)
    for checkpoint in sealed.list_checkpoints(other):
        if sealed.find_checkpoint_defect(checkpoint):
            continue
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        step, end = int(state["global_step"]), int(state["max_steps"])
        begun = step - step % round_steps
        is_on_the_way = step < total and (begun == step or begun + round_steps <= min(end, total))
        # its last evaluation may be one that a longer run does not make, and ends a training that would stop early
        is_on_the_way &= step < end or (step % evaluated == 0 and not training.early_stopping_patience)
        best_step = state.get("best_global_step")
        has_best = best is not None and sealed.find_manifest_mismatch(best) is None and _step(best) >= (best_step or 0)
        if is_on_the_way and (has_best or best_step is None):
            return checkpoint, best if has_best else None
    return None


def continue_run_of_other_length(
    folder: Path,
    identity: Mapping[str, str],
    places: Iterable[Path],
    *,
    training: Training,
    total: int,
    trainer_class: str,
    round_steps: int,
) -> None:
    """Copy what a run of another length has reached into a run's folder that has no checkpoint; say if that cannot be.

    `places` are folders of runs of the same recipe; `total`, the steps of this one.
    """
    others = list(find_runs_of_other_length(places, identity))
    if not others or sealed.list_checkpoints(folder):
        return
    why = find_what_depends_on_steps(training, trainer_class)
    found = [] if why else [find_continued_checkpoint(other, training, total, round_steps) for other in others]
    usable = max((one for one in found if one), key=lambda pair: _step(pair[0]), default=None)
    if usable is None:
        why = f"in `training`, {why}" if why else "none of its checkpoints that are left is one that this run comes by"
        message = "train: starts at step 0, although run %s differs in its number of steps only: %s"
        logger.info(message, others[0].name, why)
        return
    checkpoint, best = usable
    run = sealed.identity_to_json(identity)
    for place in filter(None, (best, checkpoint)):  # as in a training, the best weights come first
        staged = folder / sealed.STAGING / place.name
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(place, staged, ignore=shutil.ignore_patterns(sealed.MANIFEST))
        (staged / sealed.IDENTITY).write_text(run, encoding="utf-8")
        if place == checkpoint:
            ended_early = (
                _step(place) < json.loads((place / "trainer_state.json").read_text(encoding="utf-8"))["max_steps"]
            )
            position = sealed.ResumePosition.load(place)
            replace(position, finished=position.finished and ended_early).save(staged)
        sealed.seal_and_rename(staged, folder / place.name)
    message = "train: goes on from step %d of run %s, which differs in its number of steps only"
    logger.info(message, _step(checkpoint), checkpoint.parent.name)


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])

"""Which checkpoint a run goes on from, and the one line of the log that says why."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from params import CheckpointError
from params.artifacts import write_whole
from trainer.checkpoints.sealed import IDENTITY, STAGING, all_checkpoints, damage, identity_text, newest_sound, step_of

logger = logging.getLogger(__name__)
_SHOWN = 3
"""Differences that are named; more are counted."""


def choose(folder: Path, identity: Mapping[str, str], resume: str) -> Path | None:
    """The checkpoint to go on from, or None for a start at step 0.

    Args:
        folder: the run's own folder, named after its key.
        identity: all that determines the run.
        resume: `training.resume` of the recipe.

    Raises:
        CheckpointError: the checkpoint that the recipe names is damaged, incomplete, or of another run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = identity_text(identity)
    write_whole(folder / IDENTITY, run)
    shutil.rmtree(folder / STAGING, ignore_errors=True)  # what was being written when the last start ended
    if resume == "never":
        found = all_checkpoints(folder)
        for place in (*found, *folder.glob("best-*")):
            shutil.rmtree(place)
        unused = f", {len(found)} checkpoint(s) deleted" if found else ""
        logger.info("train: run %s starts at step 0, because training.resume is `never`%s", folder.name, unused)
        return None
    own = newest_sound(folder, run)
    if resume != "auto":
        named = _named(Path(resume), identity)
        if own is None or step_of(own) < step_of(named):
            logger.info("train: run %s goes on at step %d from %s, as training.resume says", *_at(folder, named))
            return named
    if own:
        logger.info("train: run %s goes on at step %d from %s, the newest sound checkpoint", *_at(folder, own))
        return own
    logger.info("train: run %s starts at step 0: %s", folder.name, _others(folder, identity))
    return None


def _at(folder: Path, checkpoint: Path) -> tuple[str, int, Path]:
    return folder.name, step_of(checkpoint), checkpoint


def _named(checkpoint: Path, identity: Mapping[str, str]) -> Path:
    """The checkpoint that a recipe names, if this run may go on from it."""
    if not checkpoint.is_dir():
        fix = "name a checkpoint's folder, or set training.resume to `auto` or `never`"
        raise CheckpointError(f"training.resume {checkpoint}", "there is no such folder", fix)
    if found := damage(checkpoint):
        raise CheckpointError(f"training.resume {checkpoint}", found, "name a sound one; nothing was started")
    other = json.loads((checkpoint / IDENTITY).read_text(encoding="utf-8"))
    if apart := differences(other, identity):
        what = f"is a checkpoint of another run: {apart}"
        fix = "undo the change; or, to start a new run from its weights, set model.pretrained to that folder"
        raise CheckpointError(f"training.resume {checkpoint}", what, fix)
    return checkpoint.absolute()


def _others(folder: Path, identity: Mapping[str, str]) -> str:
    """What else was found beside the run's folder, and why it was left alone."""
    for other in sorted(folder.parent.glob(f"*/{IDENTITY}")):
        if other.parent != folder and (kept := all_checkpoints(other.parent)):
            apart = differences(json.loads(other.read_text(encoding="utf-8")), identity)
            return f"{kept[0]} is of another run ({apart})"
    return "it has no checkpoint"


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """What sets two identities apart, for people to read; nothing for equal ones."""
    odd = [name for name in sorted({**found, **wanted}) if found.get(name) != wanted.get(name)]
    said = [
        f"{name} has changed"
        if " " in name
        else f"{name} was {found.get(name, 'not set')}, is {wanted.get(name, 'not set')}"
        for name in odd[:_SHOWN]
    ]
    more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
    return ", ".join(said) + more

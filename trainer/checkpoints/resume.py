"""The checkpoint that a run resumes from, and the log line that says why."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from params import CheckpointError
from params.foundation.artifacts import write_text_atomically
from trainer.checkpoints import sealed

logger = logging.getLogger(__name__)
_SHOWN = 3
"""Number of differences to name; the others are counted."""


def prepare_resume(folder: Path, identity: Mapping[str, str], resume: str) -> Path | None:
    """Return the checkpoint to resume from, as `training.resume` says, or None for a start at step 0.

    Raises CheckpointError if the recipe names a checkpoint that is damaged, incomplete or from another run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = sealed.identity_to_json(identity)
    write_text_atomically(folder / sealed.IDENTITY, run)
    shutil.rmtree(folder / sealed.STAGING, ignore_errors=True)  # left by a kill in the middle of a save
    if resume == "never":
        found = sealed.list_checkpoints(folder)
        for place in (*found, *folder.glob("best-*")):
            shutil.rmtree(place)
        unused = f", {len(found)} checkpoint(s) deleted" if found else ""
        logger.info("train: run %s starts at step 0, because training.resume is `never`%s", folder.name, unused)
        return None
    own = sealed.find_newest_setting_broken_aside(folder, run)
    if resume != "auto":
        named = _named(Path(resume), identity)
        if own is None or sealed.read_checkpoint_step(own) < sealed.read_checkpoint_step(named):
            return _log_start(folder, named, "as training.resume says")
    if own:
        return _log_start(folder, own, "the newest valid checkpoint")
    why = "it has no checkpoint"
    for other in sorted(folder.parent.glob(f"*/{sealed.IDENTITY}")):
        if other.parent != folder and (kept := sealed.list_checkpoints(other.parent)):
            apart = describe_identity_differences(json.loads(other.read_text(encoding="utf-8")), identity)
            why = f"{kept[0]} is of another run ({apart})"
            break
    logger.info("train: run %s starts at step 0: %s", folder.name, why)
    return None


def _log_start(folder: Path, checkpoint: Path, why: str) -> Path:
    step = sealed.read_checkpoint_step(checkpoint)
    logger.info("train: run %s resumes at step %d from %s, %s", folder.name, step, checkpoint, why)
    return checkpoint


def _named(checkpoint: Path, identity: Mapping[str, str]) -> Path:
    if not checkpoint.is_dir():
        fix = "name a checkpoint's folder, or set training.resume to `auto` or `never`"
        raise CheckpointError(f"training.resume {checkpoint}", "there is no such folder", fix)
    if found := sealed.find_checkpoint_defect(checkpoint):
        raise CheckpointError(f"training.resume {checkpoint}", found, "name a valid one")
    other = json.loads((checkpoint / sealed.IDENTITY).read_text(encoding="utf-8"))
    if apart := describe_identity_differences(other, identity):
        what = f"is a checkpoint of another run: {apart}"
        fix = "undo the change, or set model.pretrained to that folder to start a new run from its weights"
        raise CheckpointError(f"training.resume {checkpoint}", what, fix)
    return checkpoint.absolute()


def describe_identity_differences(found: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Return how two identities differ, as text; empty if they are equal."""
    names = [name for name in sorted({**found, **own}) if found.get(name) != own.get(name)]
    texts = [f"{name} was {found.get(name, 'not set')}, is {own.get(name, 'not set')}" for name in names[:_SHOWN]]
    texts = [f"{name} has changed" if " " in name else text for name, text in zip(names, texts, strict=False)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(texts) + more

"""The folders of a recipe's runs in .scratch, with checkpoints and best weights: which of them later runs have superseded."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from params.artifacts import Artifacts

logger = logging.getLogger(__name__)


def superseded(artifacts: Artifacts, *, keep: int = 1) -> list[Path]:
    """Return the run folders of a recipe, without the `keep` that were written to last."""
    folders = [path for path in artifacts.checkpoints.glob("*") if path.is_dir()]
    return sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]


def prune_superseded(artifacts: Artifacts) -> None:
    """Delete superseded run folders after a finished training, which must hold the recipe's `train_lock`.

    The run before it stays: undoing the last edit of the recipe resumes it.
    """
    for folder in superseded(artifacts, keep=2):
        logger.info("train: deleted the checkpoints of run %s, which later runs have superseded", folder.name)
        shutil.rmtree(folder, ignore_errors=True)

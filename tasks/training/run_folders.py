"""The folders of a recipe's runs in .scratch, with checkpoints and best weights: which of them later runs have superseded.

Each start of a training writes a number into its run's folder, larger than those of all other runs. Clocks can be wrong, and copies of
folders have other times, so times say nothing about what ran last.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from params import EvergreenError
from params.foundation.artifacts import Artifacts, write_text_atomically
from trainer.job import Job
from trainer.loop.other_length import find_continued_checkpoint, find_what_depends_on_steps

logger = logging.getLogger(__name__)
STARTED: Final = "started"


def mark_runs_as_last_started(artifacts: Artifacts, runs: Iterable[str]) -> None:
    """Note that the runs of one training start, or are continued: they are then the last ones. The caller holds the recipe's `train_lock`.

    Raises:
        StorageError: the disk is full or read-only.
    """
    last = max(map(_number, _folders(artifacts)), default=0)
    for run in runs:
        write_text_atomically(artifacts.checkpoints / run / STARTED, f"{last + 1}\n")


def list_superseded_run_folders(artifacts: Artifacts, *, keep: int = 1) -> list[Path]:
    """Return the run folders of a recipe, without those of the `keep` trainings that were started last."""

    def start(folder: Path) -> tuple[int, float]:  # folders of earlier versions have no number: all others are newer
        number = _number(folder)
        return number, 0.0 if number else folder.stat().st_mtime

    starts = {path: start(path) for path in _folders(artifacts)}
    last = sorted(set(starts.values()), reverse=True)[:keep]
    return sorted(
        (path for path, one in starts.items() if one not in last), key=lambda path: starts[path], reverse=True
    )


def delete_superseded_run_folders(artifacts: Artifacts) -> None:
    """Delete superseded run folders after a finished training, which must hold the recipe's `train_lock`.

    The run before it stays: undoing the last edit of the recipe resumes it.
    """
    for folder in list_superseded_run_folders(artifacts, keep=2):
        logger.info("train: deleted the checkpoints of run %s, which later runs have superseded", folder.name)
        shutil.rmtree(folder, ignore_errors=True)


def keep_finished_run(artifacts: Artifacts, folder: Path) -> None:
    """Delete the folder of a finished run, except for what a longer run goes on from, in place of what was kept of another run."""
    if not folder.is_dir():
        return
    kept = set[str]()
    with contextlib.suppress(OSError, ValueError, EvergreenError):  # an earlier version wrote another job
        job = Job.load(folder / "job.json")
        if not find_what_depends_on_steps(job.training, job.objective):
            kept = {path.name for path in find_continued_checkpoint(folder, job, math.inf) or () if path}
    shutil.rmtree(artifacts.finished_run, ignore_errors=True)
    artifacts.finished_run.mkdir(parents=True)
    # first: a kill in between must leave no finished run without its best weights, which the next start would hand over
    folder = folder.rename(artifacts.finished_run / folder.name)
    for path in folder.iterdir():
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _folders(artifacts: Artifacts) -> list[Path]:
    return [path for path in artifacts.checkpoints.glob("*") if path.is_dir()]


def _number(folder: Path) -> int:
    """Return the number of a run's last start; 0 if an earlier version started it."""
    try:
        return int((folder / STARTED).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return 0

"""The queue of uploads: hard links to checkpoints and best weights, which the training's retention does not delete."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
from pathlib import Path

from params.foundation.artifacts import link_or_copy
from trainer.checkpoints.sealed import MANIFEST, all_checkpoints

logger = logging.getLogger(__name__)

_ROOM = 3
"""With less free disk than this many checkpoints, older ones are dropped from the queue: the training needs the space."""


class UploadQueue:
    """Checkpoints and best weights to upload.

    `folder` holds the hard links of one run. Without `keep_all`, only the newest checkpoint is uploaded.
    """

    def __init__(self, folder: Path, *, keep_all: bool) -> None:
        self.keep_all = keep_all
        self._folder = folder
        self._seen: set[tuple[str, int]] = set()
        self._incomplete: set[tuple[str, int]] = set()
        self._taken: set[Path] = set()
        self._lock = threading.Lock()

    def collect(self, run: Path) -> None:
        """Add what is new in a run's folder.

        Best weights are linked after the checkpoints, so they are at least as new as those that the checkpoints refer to.
        """
        checkpoints = all_checkpoints(run)
        for sealed in (*(reversed(checkpoints) if self.keep_all else checkpoints[:1]), *_best(run)):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                stamp = (sealed.name, (sealed / MANIFEST).stat().st_mtime_ns)
                if stamp not in self._seen:
                    damage = self._link(sealed)
                    if damage is None or stamp in self._incomplete:  # the second time it is damaged, not being deleted
                        self._seen.add(stamp)
                    if damage and stamp in self._incomplete:
                        logger.warning("mirror: %s is left out: %s", sealed, damage)
                    self._incomplete.add(stamp)
        with self._lock:
            self._drop_superseded()

    def next(self) -> list[Path]:
        """Return what to upload next: a checkpoint, best weights, both or neither. They stay until `remove`."""
        with self._lock:
            checkpoints = all_checkpoints(self._folder)
            found = [*(checkpoints[-1:] if self.keep_all else checkpoints[:1]), *_best(self._folder)]
            self._taken = set(found)
            return found

    def remove(self, sealed: Path) -> None:
        """Remove what was uploaded, or cannot be."""
        with self._lock:
            self._taken.discard(sealed)
            shutil.rmtree(sealed, ignore_errors=True)

    def _link(self, sealed: Path) -> str | None:
        """Link a folder, whole or not at all; return the reason if it failed."""
        partial, target = self._folder / ".partial", self._folder / sealed.name
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(sealed, partial, copy_function=link_or_copy)
            names = {p.relative_to(partial).as_posix() for p in partial.rglob("*") if p.is_file()}
            if names != {MANIFEST, *json.loads((partial / MANIFEST).read_text(encoding="utf-8"))}:
                return "files are missing"
        except (OSError, ValueError) as error:
            return str(error)
        with self._lock:
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        return None

    def _drop_superseded(self) -> None:
        """Drop what newer uploads replace, and older checkpoints when the disk is nearly full."""
        checkpoints, best = all_checkpoints(self._folder), _best(self._folder)
        older = [p for p in checkpoints[1:] if p not in self._taken]
        if older and self.keep_all:
            size = sum(p.stat().st_size for p in checkpoints[0].rglob("*"))
            if shutil.disk_usage(self._folder).free > _ROOM * size:
                older = []
            else:
                logger.warning("mirror: no room on the disk: not uploaded: %s", ", ".join(p.name for p in older))
        replaced = (p for p in self._folder.glob("best-*") if p not in best and p not in self._taken)
        for path in (*older, *replaced):
            shutil.rmtree(path, ignore_errors=True)


def _best(folder: Path) -> list[Path]:
    """Return the newest best weights in a folder, if any."""
    return sorted(folder.glob("best-*"), key=lambda path: int(path.name.removeprefix("best-")))[-1:]

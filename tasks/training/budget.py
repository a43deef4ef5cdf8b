"""The time that a training may take, `launch.max_hours`, over all of its starts on this machine."""

from __future__ import annotations

import math
import time

from params import BudgetSpentError, EvergreenError
from params.foundation.artifacts import write_text_atomically
from trainer.job import Job

_SAVE_EVERY_S = 10.0


class TrainingTimeCounter:
    """Counts the time while a training's processes run; what it has counted outlives this process."""

    def __init__(self, job: Job) -> None:
        hours = job.launch.max_hours
        self._limit_s = math.inf if hours is None else 3600 * hours
        self._file = job.folder / "seconds"
        self._before_s = float(self._file.read_text(encoding="utf-8")) if self._file.exists() else 0.0
        self._started = time.monotonic()
        self._saved_s = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether the training must stop. Saves the time now and then: a kill costs at most ten seconds of the count."""
        seconds = time.monotonic() - self._started
        if seconds - self._saved_s > _SAVE_EVERY_S:
            self.save()
        return self._before_s + seconds >= self._limit_s

    def save(self) -> None:
        """Save the time that all starts have taken."""
        self._saved_s = time.monotonic() - self._started
        write_text_atomically(self._file, f"{self._before_s + self._saved_s:.1f}\n")

    def error(self, stopped: EvergreenError) -> BudgetSpentError:
        """Return the error of a training that had to stop; `stopped` says where it resumes."""
        what = f"budget spent: {self._limit_s / 3600:g} h; {stopped.what.partition('; ')[2]}"
        fix = "raise it, and the next run goes on from there; or ask for fewer steps, which starts a new training"
        return BudgetSpentError.at("launch.max_hours", what, fix)

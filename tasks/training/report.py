"""What the train stage reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from tasks.stages import Report
from trainer.start import ReleaseReference


class TrainingReport(Report):
    saved_as: ClassVar[str] = "train"
    run: str
    """Key of everything that determines the run."""
    steps: int
    parameters: int
    best_step: int
    best_metric: str
    best_value: float
    final_train_loss: float | None
    git_commit: str | None
    """Commit of the code that trained; `+` follows when the code had changes that were not committed."""
    versions: dict[str, str]
    """Versions of Python and of the libraries that decide on the weights."""
    started_from: ReleaseReference | None = None
    """The release that the training started from; None if it started from the recipe's own model."""
    base_commit: str | None = None
    """The commit of a base model from a Hub that the training has loaded; None for other bases, and in reports of earlier versions."""
    arms: Mapping[Literal["champion", "base"], float] = {}
    """With `model.start: best`, the best value of `best_metric` that the training reached from each start."""

    @property
    def start_sentence(self) -> str:
        """Which model the training started from, with what each start has reached; empty if it was not asked."""
        if not self.started_from and not self.arms:
            return ""
        chosen = f"the published model, {self.started_from.name}" if self.started_from else "the recipe's own model"
        names = {"champion": "the published model", "base": "the recipe's own model"}
        reached = [f"from {names[arm]} it reached {self.best_metric} {value:.4g}" for arm, value in self.arms.items()]
        return f"{'; '.join([f'The training started from {chosen}', *reached])}."

    @property
    def summary(self) -> str:
        """Which step is kept, and why."""
        start = f", from {self.started_from.name}" if self.started_from else ""
        kept = "" if self.best_step else f", the {'published' if start else 'untrained'} model,"
        return f"{self.steps} steps{start}; step {self.best_step}{kept} is the best, with {self.best_metric} {self.best_value:.4g}"

"""What an evaluation learns of a batch by one forward pass: its scores, and what a recipe's own metrics get."""

from __future__ import annotations

from typing import NamedTuple

from trainer.objectives.bases.lazy_imports import torch


class ScoredBatch(NamedTuple):
    """The scores of B sequences, and the model's outputs for them. docs/training.md says what outputs and labels each objective has."""

    scores: torch.Tensor
    """(B, K) float64, as `Objective.score_batch` returns them."""
    logits: torch.Tensor
    """What the model says, (B, ...): `evaluation.metrics.preprocess_logits` gets it."""
    labels: torch.Tensor
    """What the rows say, (B, ...)."""
    predictions: torch.Tensor | None = None
    """What own metrics get without `preprocess_logits`, (B, ...), if an objective has something else than what is usual."""

    def usual_predictions(self) -> torch.Tensor:
        """Return `predictions`; by default the likeliest classes, the argmax of the last dimension, or the logits where labels are floats."""
        if self.predictions is not None:
            return self.predictions
        return self.logits if self.labels.is_floating_point() else self.logits.argmax(-1)

"""The metrics of a split, summed batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.objectives.bases.objective import Objective, ObjectiveState

if TYPE_CHECKING:
    import torch


class MetricAccumulator:
    """Metrics over any number of sequences, in constant memory."""

    def __init__(self, objective: Objective[Any], state: ObjectiveState) -> None:
        self._objective, self._state = objective, state
        self._totals: Any = 0.0

    def update(self, scores: torch.Tensor) -> None:
        """Add scores (B, K), in the order of `Objective.score_names`."""
        columns = dict(zip(self._objective.score_names, scores.double().cpu().numpy().T, strict=True))
        self._totals = self._totals + self._objective.additive_statistics(columns, self._state).sum(0)

    def compute(self) -> dict[str, float]:
        """Return the metrics of all sequences so far."""
        metrics = self._objective.compute_metrics(self._totals, self._state)
        return {name: float(value) for name, value in metrics.items()}

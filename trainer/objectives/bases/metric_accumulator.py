"""The metrics of a split, summed batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.objectives.bases.objective import Objective, ObjectiveState, ScoreColumns

if TYPE_CHECKING:
    import torch


class MetricAccumulator:
    """Metrics over any number of sequences: in constant memory, unless they need the scores of whole groups or of all rows."""

    def __init__(self, objective: Objective[Any], state: ObjectiveState) -> None:
        self._objective, self._state = objective, state
        self._keeps_scores = bool(objective.group_score or objective.split_metrics)
        self._kept: list[Any] = []
        self._totals: Any = 0.0

    def update(self, scores: torch.Tensor) -> None:
        """Add scores (B, K), in the order of `Objective.score_names`."""
        table = scores.double().cpu().numpy()
        if self._keeps_scores:
            self._kept.append(table)
        else:
            self._totals = self._totals + self._sums(self._columns(table))

    def compute(self) -> dict[str, float]:
        """Return the metrics of all sequences so far."""
        import numpy as np

        found: dict[str, Any] = {}
        if self._keeps_scores:
            columns = self._columns(np.concatenate(self._kept))
            self._totals = self._sums(columns)
            found = self._objective.whole_metrics(columns, self._state)
        found |= self._objective.compute_metrics(self._totals, self._state)
        return {name: float(value) for name, value in found.items()}

    def _columns(self, table: Any) -> ScoreColumns:
        return dict(zip(self._objective.score_names(self._state), table.T, strict=True))

    def _sums(self, columns: ScoreColumns) -> Any:
        return self._objective.additive_statistics(columns, self._state).sum(0)

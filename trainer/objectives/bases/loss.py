"""What a micro-batch adds to the loss of its global batch, which does not depend on how it is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainer.objectives.bases.lazy_imports import torch
from trainer.objectives.bases.rows import ObjectiveState


@dataclass(frozen=True)
class MicroBatchShare:
    """Where a micro-batch stands in the global batch of an optimizer step.

    Trainer adds up the losses of a process's micro-batches, and averages gradients over processes. So a sum over a micro-batch
    counts `processes` times, divided by the `items` of the global batch; a mean over equally large micro-batches, by `micro_batches`.
    """

    items: torch.Tensor | float
    """What the loss of the global batch is a mean over: its `Objective.loss_items`."""
    micro_batches: int
    """Micro-batches of each process."""
    processes: int
    smoothing: float = 0.0
    """The recipe's `label_smoothing_factor`."""
    model_takes_items: bool = True
    """Whether the model's own loss is a sum over `num_items_in_batch`, if that is given."""
    state: ObjectiveState = field(default_factory=dict)
    """What the objective learned of the train split, such as how many rows have each label (`Objective.state_of_summaries`)."""


class BatchLoss(NamedTuple):
    """The loss of a micro-batch, and what else is known of it."""

    loss: torch.Tensor
    outputs: Any = None
    """Those of the model; a recipe's own Trainer may ask for them."""
    metrics: Mapping[str, tuple[float, float]] = {}
    """Sum and number of each value whose mean is logged."""


def compute_rescaled_model_loss(
    model: Any, batch: Mapping[str, Any], share: MicroBatchShare, items: torch.Tensor
) -> BatchLoss:
    """Return the own loss of a model that averages over the `items` of its micro-batch, as all classifiers of transformers do."""
    outputs = model(**batch)
    return BatchLoss(outputs.loss * (float(items) / float(share.items) * share.processes), outputs)

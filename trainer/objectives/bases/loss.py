"""What a micro-batch adds to the loss of its global batch, which does not depend on how it is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trainer.objectives.bases.lazy_imports import torch
from trainer.objectives.bases.rows import ObjectiveState

_ROUTER_WEIGHTS: Final = ("router_aux_loss_coef", "aux_loss_coef")
"""What models with experts call the weight of their auxiliary loss."""


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
    is_fused: bool = False
    """Whether the model may compute its logits and the cross-entropy of next tokens by one kernel (Liger's), which keeps no logits."""
    state: ObjectiveState = field(default_factory=dict)
    """What the objective learned of the train split, such as how many rows have each label (`Objective.state_of_summaries`)."""


class BatchLoss(NamedTuple):
    """The loss of a micro-batch, and what else is known of it."""

    loss: torch.Tensor
    outputs: Any = None
    """Those of the model; a recipe's own Trainer may ask for them."""
    metrics: Mapping[str, tuple[float, float]] = {}
    """Sum and number of each value whose mean is logged."""


def auxiliary_loss(model: Any, outputs: Any) -> torch.Tensor | None:
    """Return what a model with experts adds to the loss of a batch, with its weight; None unless its configuration has `output_router_logits`.

    By it, the router uses all experts (Fedus et al. 2021, https://arxiv.org/abs/2101.03961, equation 4).
    """
    found = getattr(outputs, "aux_loss", None)
    if not isinstance(found, torch.Tensor):
        return None
    own = getattr(model, "module", model)
    weight = next((getattr(own, name) for name in _ROUTER_WEIGHTS if hasattr(own, name)), None)
    if weight is None:
        weight = own.config.get_text_config().router_aux_loss_coef
    return float(weight) * found


def compute_rescaled_model_loss(
    model: Any, batch: Mapping[str, Any], share: MicroBatchShare, items: torch.Tensor
) -> BatchLoss:
    """Return the own loss of a model that averages over the `items` of its micro-batch, as all classifiers of transformers do."""
    outputs = model(**batch)
    return BatchLoss(outputs.loss * (float(items) / float(share.items) * share.processes), outputs)

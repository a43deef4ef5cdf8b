"""Losses that a recipe can name as `training.loss`, instead of the model's own.

Each takes the model's outputs, the labels, and `num_items_in_batch`, the number of labels in the global batch. It returns
the sum over the micro-batch divided by that number, so that the gradient does not depend on how a global batch is split. One that is a
mean over something else has a second function beside it, its name with `_items`, which counts that in the labels of a micro-batch, with
the same arguments: `num_items_in_batch` is then the sum over the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from params import ModelError
from trainer.objectives.bases.likelihood import micro_batch_loss_share
from trainer.objectives.bases.texts.padding import IGNORE_INDEX


def cross_entropy(
    outputs: Any,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None,
    *,
    smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
    next_token: bool = False,
) -> torch.Tensor:
    """Return the cross-entropy of logits (B, C) and labels (B,), or (B, T, C) and (B, T).

    With class weights, it is divided by the weights of the labels, as torch's `CrossEntropyLoss` does it. `smoothing` is the share of the target distribution that is spread evenly over all classes (Szegedy et al. 2016,
    https://arxiv.org/abs/1512.00567). With `next_token`, the logits of a position predict the next token, as in a causal
    language model. ModelError unless there are C class weights.
    """
    logits = outputs.logits
    if next_token:
        logits, labels = logits[:, :-1], labels[:, 1:]
    weights = None if class_weights is None else torch.tensor(class_weights, device=logits.device)
    if weights is not None and len(weights) != logits.shape[-1]:
        what = f"has {len(weights)} class_weights for {logits.shape[-1]} classes"
        raise ModelError("training.loss", what, "give one per label, in the order of the model's config.id2label")
    return micro_batch_loss_share(logits, labels, num_items_in_batch, smoothing=smoothing, weights=weights)


def cross_entropy_items(
    labels: torch.Tensor,
    *,
    smoothing: float = 0.0,  # noqa: ARG001 - both functions get the same arguments
    class_weights: Sequence[float] | None = None,
    next_token: bool = False,
) -> torch.Tensor:
    """Return what `cross_entropy` is a mean over: the sum of the weights of labels, (B,) or (B, T); without weights, their number."""
    told = labels[:, 1:] if next_token else labels
    told = told[told != IGNORE_INDEX]
    if class_weights is None:
        return torch.tensor(len(told))
    weights = torch.tensor(class_weights)
    known = told[told < len(weights)].cpu()  # `cross_entropy` says that there are too few
    return weights[known].sum()

"""The layer of a model that gives its logits, one for each label or number, and which of its rows a base model has trained."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch


class OutputLayer(NamedTuple):
    """The last linear layer of a classifier, or of a model that answers numbers."""

    name: str
    layer: Any
    """A `torch.nn.Linear` with a row for each output, and a bias (L,) or None."""
    trained: frozenset[int]
    """The rows that come from a base model."""


def find_output_layer(model: PreTrainedModel, new: Collection[str]) -> OutputLayer | None:
    """Return the layer behind a model's encoder or decoder that has `num_labels` outputs; None if it ends in no linear layer.

    `new` are the names of the weights that no base model has. `trainer.model.label_head` names the rows of a head that was put together.
    """
    labels, body = model.config.num_labels, model.base_model_prefix
    found: tuple[str, Any] | None = None
    for name, layer in model.named_modules():
        is_behind_body = name.partition(".")[0] != body
        if isinstance(layer, torch.nn.Linear) and layer.out_features == labels and is_behind_body:
            found = (name, layer)
    if found is None:
        return None
    of_base = () if f"{found[0]}.weight" in new else range(labels)
    return OutputLayer(*found, frozenset(getattr(model, "rows_of_base", of_base)))

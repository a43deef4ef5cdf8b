"""L2-SP: a penalty for moving away from the weights that a training starts from (Li et al. 2018, https://arxiv.org/abs/1802.01483).

The penalty is c/2 times the squared distance of the weights from those at the start, so it adds c times the difference to their gradients. That
is done once for each optimizer step, after the backward passes. It costs no forward pass, does not depend on how the global batch is split, and
is not part of the loss that is logged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from params.schema import Model, Training


class StartWeights:
    """The weights of a model as a training finds them, which takes their memory once more."""

    def __init__(self, model: torch.nn.Module, coefficient: float, new: Collection[str]) -> None:
        self._coefficient = coefficient
        self._pairs = [
            (parameter, parameter.detach().clone())
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and name not in new
        ]

    @classmethod
    def of_training(
        cls, model: torch.nn.Module, training: Training, initial: Model, new: Collection[str]
    ) -> StartWeights | None:
        """Return the weights to which `training.stay_close` pulls; None without it, or if all weights are random. `new` ones are free."""
        if training.stay_close is None or initial.pretrained is None:
            return None
        return cls(model, training.stay_close, new)

    @torch.no_grad()
    def add_to_gradients(self, scaler: Any = None) -> None:
        """Add the gradient of the penalty; a `scaler` of fp16 has multiplied the others."""
        factor = self._coefficient * (scaler.get_scale() if scaler else 1.0)
        self._pairs = [(parameter, start.to(parameter.device)) for parameter, start in self._pairs]
        for parameter, start in self._pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=factor)

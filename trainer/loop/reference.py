"""A Trainer whose objective computes the loss itself, and may need the model as it was before training."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from trainer.loop.trainer import EvergreenTrainer


class ReferenceTrainer(EvergreenTrainer):
    """Computes losses by `own_loss`; `start_model` gives the model that training started with."""

    _frozen: Any = None

    def keep_start_model(self) -> None:
        """Keep a copy of the model, which adapters make unnecessary; call it before a checkpoint is loaded."""
        if not hasattr(self.model, "disable_adapter"):  # not a peft model
            self._frozen = copy.deepcopy(self.model).to(self.args.device).eval().requires_grad_(requires_grad=False)

    @contextmanager
    def start_model(self) -> Iterator[Any]:
        """Give the start model, without dropout: the copy, or the model with its adapters off."""
        if self._frozen is not None:
            yield self._frozen
            return
        model = cast("Any", self.accelerator.unwrap_model(self.model))
        was_training = model.training
        model.eval()
        with model.disable_adapter():
            yield model
        model.train(was_training)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of `own_loss`."""
        loss, outputs = self.own_loss(model, inputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def own_loss(self, model: Any, inputs: dict[str, Any], items: Any) -> tuple[torch.Tensor, Any]:
        """Return loss and outputs of a micro-batch; `items` is what `get_batch_samples` counted in its global batch."""
        raise NotImplementedError

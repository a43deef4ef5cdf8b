"""The Trainer of objectives that compare the model in training with the one that the training started from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from trainer.loop.trainer import EvergreenTrainer


class ReferenceTrainer(EvergreenTrainer):
    """Keeps the model as training found it; its subclasses ask it."""

    _start_model: Any = None
    _start_values: list[tuple[torch.nn.Parameter, torch.Tensor]]
    """What is trained of a model whose adapters go on, with its values at the start."""

    def keep_start_model(self) -> None:
        """Keep a copy of the model, or of its adapters if they do not begin as zero; call it before a checkpoint is loaded."""
        self._start_values = []
        if not hasattr(self.model, "disable_adapter"):  # not a peft model
            frozen = copy.deepcopy(self.model).to(self.args.device).eval()
            self._start_model = frozen.requires_grad_(requires_grad=False)
        elif any(".lora_" in name and "_B." in name and own.any() for name, own in self.model.named_parameters()):
            trained = (own for own in self.model.parameters() if own.requires_grad)
            self._start_values = [(own, own.detach().clone()) for own in trained]

    @contextmanager
    def start_model(self) -> Iterator[Any]:
        """Give the start model, without dropout: the copy, or the model with its adapters off or as they were."""
        if self._start_model is not None:
            yield self._start_model
            return
        model: Any = self.accelerator.unwrap_model(self.model)
        was_training = model.training
        model.eval()
        with ExitStack() as at_the_end:
            if self._start_values:
                self._exchange()
                at_the_end.callback(self._exchange)
            else:
                at_the_end.enter_context(model.disable_adapter())
            yield model
        model.train(was_training)

    def _exchange(self) -> None:
        for own, other in self._start_values:
            own.data, other.data = other.to(own.device), own.data
        torch.clear_autocast_cache()  # it knows weights by their place

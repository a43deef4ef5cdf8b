"""The Trainer of objectives that compare the model in training with the one that the training started from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainer.loop.trainer import EvergreenTrainer


class ReferenceTrainer(EvergreenTrainer):
    """Keeps the model as training found it; its subclasses ask it."""

    _start_model: Any = None

    def keep_start_model(self) -> None:
        """Keep a copy of the model, which adapters make unnecessary; call it before a checkpoint is loaded."""
        if not hasattr(self.model, "disable_adapter"):  # not a peft model
            frozen = copy.deepcopy(self.model).to(self.args.device).eval()
            self._start_model = frozen.requires_grad_(requires_grad=False)

    @contextmanager
    def start_model(self) -> Iterator[Any]:
        """Give the start model, without dropout: the copy, or the model with its adapters off."""
        if self._start_model is not None:
            yield self._start_model
            return
        model: Any = self.accelerator.unwrap_model(self.model)
        was_training = model.training
        model.eval()
        with model.disable_adapter():
            yield model
        model.train(was_training)

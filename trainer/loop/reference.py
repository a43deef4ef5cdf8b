"""A Trainer whose objective may need the model as it was before training."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from trainer.loop.trainer import EvergreenTrainer


class StartModelTrainer(EvergreenTrainer):
    """`start_model` gives the model that training started with."""

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

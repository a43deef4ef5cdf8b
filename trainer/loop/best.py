"""The weights of the best evaluation so far, kept apart from the checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from params.schema import Direction
from trainer.checkpoints.saver import Saver
from trainer.checkpoints.sealed import best_weights
from trainer.loop import sharding
from trainer.loop.collectives import Collectives

if TYPE_CHECKING:
    from transformers import Trainer


class BestWeights:
    """Saves the weights of each evaluation that is better than all before it, interrupted starts included."""

    def __init__(self, trainer: Trainer, saver: Saver, collectives: Collectives) -> None:
        self._trainer = trainer
        self._saver = saver
        self._collectives = collectives
        self.value: float | None = None
        """The best metric whose weights are saved; None when there are none."""

    def load(self) -> None:
        """Find the best weights of earlier starts in the run's folder."""
        args = self._trainer.args
        direction: Direction = "max" if args.greater_is_better else "min"
        found = best_weights(Path(args.output_dir), direction) if args.process_index == 0 else None
        self.value = self._collectives.gather(found and found.value)[0]

    def update(self, value: float) -> None:
        """Save the current weights if `value` is the best; after an interruption, the best may be saved already."""
        trainer = self._trainer
        sign = -1 if trainer.args.greater_is_better else 1
        if self.value is not None and sign * value >= sign * self.value:
            return
        self.value = value
        step, model = trainer.state.global_step, trainer.accelerator.unwrap_model(trainer.model)
        if sharding.is_sharded(trainer):
            weights = sharding.whole_weights(trainer)
        elif trainer.args.should_save:
            weights = self._saver.copy_weights(step, model)
        if trainer.args.should_save:
            metric = str(trainer.args.metric_for_best_model).removeprefix("eval_")
            self._saver.save_best(step, model, weights, metric, value)

"""transformers.Trainer, with what the pipeline promises added through its hooks.

    order       rows and dropout depend on (seed, epoch or step) only, so a resumed run and a run on another number of
                processes see the same (`get_train_dataloader`, `training_step`)
    checkpoints whole or not at all, see trainer.checkpoints (`_save_checkpoint`, `_get_output_dir`)
    best        kept apart from the checkpoints, the evaluation at start included (`on_evaluate` of a callback)
    figures     token- or row-weighted over the whole split, in memory that does not grow with it
                (`preprocess_logits_for_metrics`, `compute_metrics` with `batch_eval_metrics`)

Private methods of Trainer that this class overrides are in `PRIVATE_HOOKS`; a contract test fails when one moves.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalPrediction

from trainer.checkpoints import STAGING, best_weights, retain, seal, seal_best
from trainer.sampling import EpochSampler

if TYPE_CHECKING:
    from trainer.objectives import Meter, Objective, State

PRIVATE_HOOKS = ("_save_checkpoint", "_get_output_dir")


class EvergreenTrainer(Trainer):
    """The Trainer of every objective; an objective may bring a subclass.

    Args:
        objective: gives the collator, and the figures of an evaluation.
        state: what the objective learned from the train split.
        best_metric: name of the metric that `best` follows.
        keep_checkpoints: how many checkpoints stay.
        lengths: tokens of each training sequence, to train on batches of like length.
        model, args, train_dataset, eval_dataset, processing_class: as in Trainer.
    """

    def __init__(
        self,
        *,
        objective: Objective[Any],
        state: State,
        best_metric: str,
        keep_checkpoints: int,
        lengths: Sequence[int] | None,
        model: PreTrainedModel,
        args: TrainingArguments,
        train_dataset: Any,
        eval_dataset: Any,
        processing_class: Any,
    ) -> None:
        self._staging: Path | None = None
        self._keep_checkpoints = keep_checkpoints
        self._micro_batch = (-1, 0)
        self._sampler = EpochSampler(
            len(train_dataset),
            seed=args.seed,
            global_batch_size=args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
            lengths=lengths,
        )
        super().__init__(
            model=model,
            args=args,
            data_collator=lambda examples: objective.collate(examples, processing_class),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=_StreamedMetrics(lambda: objective.meter(state)),
            preprocess_logits_for_metrics=lambda logits, labels: objective.score(
                logits[0] if isinstance(logits, tuple) else logits, labels
            ),
        )
        self.add_callback(_Epochs(self._sampler))
        self.add_callback(_Best(self, f"eval_{best_metric}", objective.metrics[best_metric]))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Micro-batches in the order of the `EpochSampler`; accelerate deals them out to the processes in turn."""
        workers = self.args.dataloader_num_workers
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset,
            batch_size=self._train_batch_size,
            sampler=self._sampler,
            collate_fn=self.data_collator,
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers and workers > 0,
            prefetch_factor=self.args.dataloader_prefetch_factor if workers else None,
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Forward and backward of one micro-batch, its randomness keyed by seed, step and place in the global batch."""
        step, count = self._micro_batch
        count = count + 1 if step == self.state.global_step else 0
        self._micro_batch = (self.state.global_step, count)
        place = count * self.args.world_size + self.args.process_index
        with _seeded(self.args.seed, self.state.global_step, place):
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging) if self._staging else str(super()._get_output_dir(trial))

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder = Path(super()._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        staging = folder / STAGING
        if self.args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        self._staging = staging
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staging = None
        self.accelerator.wait_for_everyone()  # every rank has written what is its own
        if self.args.should_save:
            seal(staging / name, folder / name)
            retain(folder, self._keep_checkpoints)
        self.accelerator.wait_for_everyone()


class _Epochs(TrainerCallback):
    """Tells the sampler which epoch begins."""

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._sampler.set_epoch(int(state.epoch or 0))


class _Best(TrainerCallback):
    """Keeps the weights of the best evaluation so far; NaN is never the best."""

    def __init__(self, trainer: EvergreenTrainer, metric: str, direction: str) -> None:
        self._trainer = trainer
        self._metric = metric
        self._direction = direction
        self._sign = 1 if direction == "min" else -1
        self._best = math.inf

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if best := best_weights(Path(args.output_dir), self._direction):
            self._best = self._sign * best.value

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **_: object,
    ) -> None:
        value = metrics[self._metric]
        if not self._sign * value < self._best:
            return
        self._best = self._sign * value
        staging = Path(args.output_dir) / ".best"
        if args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
        self._trainer.accelerator.wait_for_everyone()
        self._trainer.save_model(str(staging))
        self._trainer.accelerator.wait_for_everyone()
        if args.should_save:
            (staging / "training_args.bin").unlink(missing_ok=True)
            seal_best(staging, step=state.global_step, metric=self._metric.removeprefix("eval_"), value=value)
        self._trainer.accelerator.wait_for_everyone()


class _StreamedMetrics:
    """`compute_metrics` for `batch_eval_metrics`: takes in a batch of scores at a time and keeps only sums."""

    def __init__(self, new_meter: Any) -> None:
        self._new_meter = new_meter
        self._meter: Meter = new_meter()

    def __call__(self, prediction: EvalPrediction, *, compute_result: bool = False) -> dict[str, float]:
        self._meter.update(prediction.predictions)
        if not compute_result:
            return {}
        metrics = self._meter.compute()
        self._meter = self._new_meter()
        return metrics


@contextlib.contextmanager
def _seeded(*key: int) -> Iterator[None]:
    """Run a block under random state that `key` determines, and leave the surrounding state as it was."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(zlib.crc32(repr(key).encode()))
        yield

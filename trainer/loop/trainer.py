"""transformers.Trainer with the pipeline's guarantees, added through its hooks.

    order        rows, augmentation and dropout depend on seed and position only, whatever the processes (trainer.data.loading)
    resuming     the position in the data and the unfinished log line are part of a checkpoint (trainer.checkpoints.sealed)
    checkpoints  complete or not there at all, written in the background (trainer.loop.checkpoints)
    best         kept apart from the checkpoints, the evaluation at start included (trainer.loop.checkpoints)
    metrics      weighted by token or row, in memory that does not grow with the split (trainer.loop.metrics)
    guard        all processes stop at the same step, and before a step that is not finite (trainer.loop.guard)

A test (tests/unit/trainer/loop/test_trainer.py) lists the private names of Trainer that this uses, and fails when one moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalPrediction

from params import CheckpointError
from trainer.checkpoints.sealed import identity_to_json
from trainer.data.loading import ResumableBatchSampler, make_plain_data_loader
from trainer.data.order import NO_TRAITS, GlobalBatchShard, RowTraits
from trainer.data.randomness import seeded
from trainer.loop import optimizers, sharding, single_texts
from trainer.loop.checkpoints import Checkpoints
from trainer.loop.collectives import Collectives
from trainer.loop.guard import CoordinatedStopGuard
from trainer.loop.metrics import EvaluationMetrics, Measurement
from trainer.loop.stay_close import StartWeights
from trainer.objectives.bases.loss import MicroBatchShare
from trainer.objectives.bases.objective import Objective
from trainer.runtime.heartbeat import Heartbeat


class EvergreenTrainer(Trainer):
    """The Trainer of every objective, with its `batch_loss`; an objective may name a subclass as its `trainer_class`.

    Args:
        objective: collates batches and computes their scores.
        metrics: accumulates the metrics of an evaluation.
        loss: Trainer's `compute_loss_func`, in place of the objective's loss.
        keep_checkpoints: number of checkpoints to keep.
        save_minutes: save after this many minutes, too, in addition to every `args.save_steps` steps.
        traits: what of the training sequences decides their order.
        identity: what decides the weights of this run; written into its checkpoints.
        heartbeat: shows that this process is alive.
        stop_requested: called at every optimizer step; True on one process stops all, with a checkpoint.
        model, args, train_dataset, eval_dataset, processing_class, callbacks: as in Trainer.
    """

    loss_is_scaled_for_ga = True
    start_weights: StartWeights | None = None
    """Those to which `training.stay_close` pulls."""

    def __init__(
        self,
        *,
        objective: Objective[Any],
        metrics: EvaluationMetrics,
        loss: Callable[..., Any] | None = None,
        keep_checkpoints: int,
        save_minutes: float | None = None,
        traits: RowTraits = NO_TRAITS,
        identity: Mapping[str, str],
        heartbeat: Heartbeat,
        stop_requested: Callable[[], bool],
        model: PreTrainedModel,
        args: TrainingArguments,
        train_dataset: Any,
        eval_dataset: Any,
        processing_class: Any,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            data_collator=lambda examples: objective.collate(examples, processing_class),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_loss_func=loss,
            compute_metrics=self._update_metrics,
            callbacks=callbacks,
        )
        self.objective = objective
        self.heartbeat = heartbeat
        self.collectives = Collectives()
        self.checkpoints = Checkpoints(self, keep=keep_checkpoints, run=identity_to_json(identity))
        self.guard = CoordinatedStopGuard(self, save_minutes=save_minutes, stop_requested=stop_requested)
        self.training_data: ResumableBatchSampler
        """This process's part of the rows; set by `get_train_dataloader`."""
        self._metrics = metrics
        self._traits = traits
        self._in_backward: optimizers.BackwardGradientHooks | None = None
        self.add_callback(self.guard)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        sharding.make_ddp_resumable(self)

    # Data and its order

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of this process's own micro-batches; accelerate has nothing to distribute."""
        return self.shard_dataloader(make_plain_data_loader(self.train_dataset, self.data_collator, self.args))

    def shard_dataloader(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return a loader of the same rows in the run's order, with this process's micro-batches of the recipe's size.

        Raises:
            RecipeError: the loader makes its batches itself.
        """
        if hasattr(self, "training_data") and loader is self.training_data.loader:
            return loader
        shard = GlobalBatchShard(
            micro_batch=self.args.train_batch_size,
            accumulation=self.args.gradient_accumulation_steps,
            processes=self.args.world_size,
            process=self.args.process_index,
        )
        augment: Any = self.objective.augmentation(self.processing_class)
        self.training_data = ResumableBatchSampler(
            loader, shard, seed=self.args.seed, traits=self._traits, augment=augment
        )
        return self.training_data.loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of one optimizer step, and record their rows."""
        inputs = self.training_data.micro_batch_inputs(epoch_iterator)
        return super().get_batch_samples(inputs, num_batches, device)  # type: ignore[no-any-return]

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Run forward and backward of one micro-batch, seeded with seed, step and place in the global batch."""
        self.heartbeat.beat("training", self.state.global_step)
        with self.micro_batch_seed(len(self.guard.micro_losses)):
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.guard.micro_losses.append(loss)
        if self.start_weights and len(self.guard.micro_losses) == self.args.gradient_accumulation_steps:
            self.start_weights.add_to_gradients(self.accelerator.scaler)
        return loss

    def micro_batch_seed(self, number: int) -> AbstractContextManager[None]:
        """Seed a block for one of this process's micro-batches, by seed, step and place in the global batch."""
        return seeded(self.args.seed, self.state.global_step, number * self.args.world_size + self.args.process_index)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor:
        own = torch.stack([self._loss_items(batch) for batch in batch_samples]).sum()
        return self.collectives.sum(own).to(device).float()

    def _loss_items(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return what the loss is a mean over, in a micro-batch: what the recipe's own one counts, or the objective's."""
        count = getattr(self.compute_loss_func, "items", None)
        found: torch.Tensor = count(batch["labels"]) if count else self.objective.loss_items(batch)
        return found

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the objective's loss of a micro-batch, or that of the recipe's own function."""
        if self.compute_loss_func is not None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        args = self.args
        steps, smoothing = args.gradient_accumulation_steps, args.label_smoothing_factor
        share = MicroBatchShare(
            num_items_in_batch,
            steps,
            args.world_size,
            smoothing,
            is_fused=args.use_liger_kernel and self.model_accepts_loss_kwargs,
            state=self._metrics.state,
        )
        found = self.objective.batch_loss(model, inputs, share)
        self.note(found.metrics)
        return (found.loss, found.outputs) if return_outputs else found.loss

    def note(self, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Called with the metrics of each micro-batch's loss. Subclasses override it."""

    def collate_on_device(self, examples: list[Any]) -> dict[str, Any]:
        """Return a batch of examples as the model takes it, on the right device."""
        return self._prepare_inputs(self.data_collator(examples))

    def _prepare_input(self, data: Any) -> Any:  # Trainer would round labels to the format of DeepSpeed's weights
        return data.to(self.args.device) if isinstance(data, torch.Tensor) else super()._prepare_input(data)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return dict(self.objective.prepare_inputs(self.model, super()._prepare_inputs(inputs)))

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """As in Trainer, which counts the parameters again for each micro-batch."""
        tokens = inputs.get(self.model.main_input_name)
        return 0 if tokens is None else 6 * tokens.numel() * self._parameter_count

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,  # noqa: FBT001
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, Measurement, torch.Tensor]:
        """Return what the metrics need of a batch in place of logits; Trainer insists on labels, which nothing reads."""
        self.heartbeat.beat("evaluating", self.state.global_step)
        self._metrics.measure_documents(partial(single_texts.measure_texts, self, model))
        with torch.no_grad(), self.compute_loss_context_manager():
            measurement = self._metrics.measure(model, self._prepare_inputs(inputs))
        return None, measurement, measurement[0]

    def _update_metrics(self, prediction: EvalPrediction, *, compute_result: bool = False) -> dict[str, float]:
        """Trainer's `compute_metrics`, called once per batch."""
        self._metrics.update(prediction.predictions)
        return self._metrics.compute() if compute_result else {}

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """Train as Trainer does; when this returns or raises, everything saved is on disk.

        Raises:
            DivergedError: loss or gradient became infinite or NaN; the model is as before that step.
            CheckpointError: the checkpoint does not belong to this run.
            StorageError: a checkpoint could not be written; the one before it is intact.
        """
        try:
            output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        except BaseException:
            self.checkpoints.writer.drain()
            raise
        self.checkpoints.writer.wait()
        self.collectives.barrier()
        return output

    def load_extra_state(self, checkpoint: Path | None) -> None:
        """Load what `save_extra_state` saved; None means a start at step 0. Subclasses override it."""

    def save_extra_state(self, folder: Path) -> None:
        """Save this process's further state to a checkpoint. Subclasses override it."""

    def _init_training_state(
        self,
        max_steps: Any,
        num_update_steps_per_epoch: Any,
        num_train_epochs: Any,
        resume_from_checkpoint: Any,
        trial: Any,
    ) -> tuple[int, int]:
        start = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        self.checkpoints.find_best()
        checkpoint = None if resume_from_checkpoint is None else Path(resume_from_checkpoint)
        if checkpoint:
            start = self.checkpoints.resume(checkpoint)
        self.load_extra_state(checkpoint)
        return int(start[0]), int(start[1])

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raise where Trainer only warns that a checkpoint lacks weights, unless they are tied to others."""
        missing = set(load_result.missing_keys) - set(self.model.all_tied_weights_keys)
        if wrong := sorted(missing | set(load_result.unexpected_keys)):
            what = f"its weights are not those of the model: {', '.join(wrong[:5])}"
            raise CheckpointError("the checkpoint", what, "resume from a checkpoint of this model, or start a new run")

    def on_prepared(self) -> None:
        """Called by the guard when model and state are ready: restore the log line that the checkpoint cut short."""
        sharding.check_fsdp2_wrapped(self)
        self._parameter_count = int(self.model.num_parameters(exclude_embeddings=True))
        if resumed := self.checkpoints.resumed:
            self._tr_loss.fill_(resumed.loss_of(self.args.process_index, self.args.world_size))
            self._globalstep_last_logged = resumed.last_logged_step

    def wait_before_fork(self) -> None:
        """Wait for the writing thread before loader workers start: a lock that it holds would stay locked in them."""
        if self.args.dataloader_num_workers:
            self.checkpoints.writer.wait()

    # The optimizer

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        own = self._in_backward
        self.guard.gradient_norm = own.gradient_norm() if own else super()._get_grad_norm(model, grad_norm)
        return self.guard.gradient_norm

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: PreTrainedModel | None = None) -> tuple[Any, Any]:
        return optimizers.optimizer_class_and_arguments(args, model)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            decayed = self.get_decay_parameter_names(self.model)
            self._in_backward = optimizers.fix_resuming(super().create_optimizer(model), self.args, self.model, decayed)
        return self.optimizer  # type: ignore[no-any-return]

    # Evaluation, the best weights and checkpoints

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002
        self.wait_before_fork()
        with seeded(self.args.seed, "evaluate", self.state.global_step):
            metrics: dict[str, float] = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        if skip_scheduler:  # the evaluation at start, which Trainer does not count for the best
            self._determine_best_metric(metrics, trial)
        self.control.should_save |= self.control.should_training_stop  # early stopping
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Keep the weights of the best evaluation so far; NaN is never the best."""
        if not super()._determine_best_metric(metrics, trial):
            return False
        self.state.best_global_step = self.state.global_step
        self.checkpoints.save_if_best(float(self.state.best_metric))
        return True

    def _get_output_dir(self, trial: Any) -> str:
        return self.checkpoints.staging or str(super()._get_output_dir(trial))

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        write = partial(super()._save_checkpoint, model, trial)
        self.checkpoints.save(write, lambda: float(self._tr_loss), self._globalstep_last_logged)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:  # noqa: FBT001, FBT002
        """As in Trainer; for a checkpoint, the weights are copied now and written in the background."""
        if self.checkpoints.staging is None or sharding.is_sharded(self):
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self.checkpoints.add_weights()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if sharding.is_sharded(self):
            super()._save_optimizer_and_scheduler(output_dir)
        elif self.args.should_save:
            self.checkpoints.add_optimizer(self.optimizer.state_dict())
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")
        self.save_extra_state(Path(output_dir))

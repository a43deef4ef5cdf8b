"""transformers.Trainer, with what the pipeline promises added through its hooks.

    order       rows, augmentation and dropout depend on seed and position only, so a resumed run and a run on another
                number of processes see the same (`get_train_dataloader`, `training_step`)
    resuming    the place in the data and the unfinished log line are part of a checkpoint (`_init_training_state`)
    checkpoints whole or not at all, on a cadence of their own, written beside the loop (`_save_checkpoint` and what it
                calls; trainer.checkpoints.sealed, trainer.checkpoints.saver)
    best        kept apart from the checkpoints, the evaluation at start included (`_evaluate`, `_determine_best_metric`)
    figures     token- or row-weighted over the whole split, in memory that does not grow with it
                (`prediction_step`, `compute_metrics` with `batch_eval_metrics`)
    guard       all processes stop at the same step, and before a step that is not finite (trainer.loop.guard)

Private names of Trainer that this class relies on are in `PRIVATE_HOOKS` and `PRIVATE_STATE`; a contract test fails when
one moves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalPrediction, IntervalStrategy

from params import CheckpointError, RecipeError
from params.schema import Direction
from trainer.checkpoints.saver import Saver
from trainer.checkpoints.sealed import POSITION, STAGING, best_weights, identity_text
from trainer.data.order import Collator, EpochOrder, Examples, Loaded, MicroBatches, SamplerOrder, Share
from trainer.data.randomness import seeded
from trainer.data.streaming import Streamed
from trainer.loop import optimizers, sharding
from trainer.loop.collectives import Agreement
from trainer.loop.guard import Guard
from trainer.runtime.heartbeat import Heartbeat

if TYPE_CHECKING:
    from trainer.loop.metrics import Figures, Measured
    from trainer.objectives.bases.objective import Objective

PRIVATE_HOOKS = (
    "_init_training_state",
    "_issue_warnings_after_load",
    "_get_grad_norm",
    "_prepare_inputs",
    "_evaluate",
    "_determine_best_metric",
    "_save_checkpoint",
    "_get_output_dir",
    "_save_optimizer_and_scheduler",
)
PRIVATE_STATE = ("_tr_loss", "_globalstep_last_logged", "_train_batch_size")


class EvergreenTrainer(Trainer):
    """The Trainer of every objective; an objective may bring a subclass.

    Args:
        objective: gives the collator.
        figures: of an evaluation.
        loss: in place of the model's own, as Trainer's `compute_loss_func`.
        keep_checkpoints: how many checkpoints stay.
        save_minutes: a checkpoint is due after so many minutes, beside every `args.save_steps` steps.
        lengths: tokens of each training sequence, to train on batches of like length.
        identity: what determines the run, written into its checkpoints.
        heartbeat: where this process shows that it is alive.
        stop_requested: asked at every optimizer step; True on one process stops all of them, with a checkpoint.
        model, args, eval_dataset, processing_class, callbacks: as in Trainer.
        train_dataset: as in Trainer; an iterable one is read as trainer.data.streaming says.
    """

    def __init__(
        self,
        *,
        objective: Objective[Any],
        figures: Figures,
        loss: Callable[..., Any] | None = None,
        keep_checkpoints: int,
        save_minutes: float | None = None,
        lengths: Sequence[int] | None = None,
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
            compute_metrics=self._count,
            callbacks=callbacks,
        )
        self.objective = objective
        """What is learned."""
        self._figures = figures
        self._lengths = lengths
        self._heartbeat = heartbeat
        self._staging: str | None = None
        self._saved_step = -1
        self._resumed: dict[str, Any] = {}
        self._best_value: float | None = None
        self._stream_state: dict[str, Any] | None = None
        self._in_backward: optimizers.StepsInBackward | None = None
        self.agreement = Agreement()
        """With the other processes of the training."""
        self.saver = Saver(Path(args.output_dir), keep=keep_checkpoints, run=identity_text(identity))
        """Writes what this process has to write."""
        self.guard = Guard(self, save_minutes=save_minutes, stop_requested=stop_requested)
        """Looks at every step."""
        self.rows: list[list[int]] = []
        """Row ids of each micro-batch of the current optimizer step, on this process."""
        self.add_callback(self.guard)

    # Data and its order

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This process's own micro-batches, so that accelerate has nothing to deal out."""
        args = self.args
        return self.shard_dataloader(
            DataLoader(
                self.train_dataset,
                shuffle=None if isinstance(self.train_dataset, IterableDataset) else True,
                collate_fn=self.data_collator,
                num_workers=args.dataloader_num_workers,
                pin_memory=args.dataloader_pin_memory,
                persistent_workers=args.dataloader_persistent_workers and args.dataloader_num_workers > 0,
                prefetch_factor=args.dataloader_prefetch_factor if args.dataloader_num_workers else None,
            )
        )

    def shard_dataloader(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """A loader's rows in the run's order, this process's share of them, in the micro-batches of the recipe.

        Args:
            loader: its data, collator, workers and sampler count; one that shuffles gives way to the run's own order.
        """
        if isinstance(loader.batch_sampler, MicroBatches):
            return loader
        streams = isinstance(loader.dataset, IterableDataset)
        if not streams and type(loader.batch_sampler) is not BatchSampler:
            what = f"get_train_dataloader gives a loader with a {type(loader.batch_sampler).__name__}"
            raise RecipeError("training.trainer", what, "give it a sampler; batches follow from the recipe")
        share = Share(
            micro_batch=self._train_batch_size,
            accumulation=self.args.gradient_accumulation_steps,
            processes=self.args.world_size,
            process=self.args.process_index,
        )
        order: EpochOrder | SamplerOrder | None = None
        size, seed = share.global_batch_size, self.args.seed
        # the one that batches are made of; `loader.sampler` is another where a loader was given its batches
        sampler = None if streams else cast("BatchSampler", loader.batch_sampler).sampler
        if type(sampler) is RandomSampler:
            rows = len(loader.dataset)  # type: ignore[arg-type]
            order = EpochOrder(rows, seed=seed, global_batch_size=size, lengths=self._lengths)
        elif not streams:
            order = SamplerOrder(cast("Sampler[int]", sampler), seed=seed, global_batch_size=size)
        self._order = MicroBatches(order, share)
        self._stream = Streamed(loader.dataset, seed) if isinstance(loader.dataset, IterableDataset) else None
        workers = min(loader.num_workers, 1) if streams else loader.num_workers
        return DataLoader(
            Examples(loader.dataset, seed) if self._stream is None else self._stream,  # type: ignore[arg-type]
            batch_sampler=self._order,
            collate_fn=Collator(loader.collate_fn, seed),
            generator=torch.Generator(),  # otherwise every start of workers would draw from the process's random state
            num_workers=workers,  # a stream is read by one: several would each read all of it
            pin_memory=loader.pin_memory,
            persistent_workers=loader.persistent_workers and workers > 0,
            prefetch_factor=loader.prefetch_factor if workers else None,
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Loaded], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of one optimizer step; their rows are remembered."""
        self.rows = []

        def inputs() -> Iterator[dict[str, Any]]:
            for loaded in epoch_iterator:
                self.rows.append(loaded["rows"])
                self._stream_state = loaded["stream"]
                yield loaded["inputs"]

        samples: tuple[list[Any], Any] = super().get_batch_samples(inputs(), num_batches, device)
        return samples

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Forward and backward of one micro-batch, its randomness keyed by seed, step and place in the global batch."""
        self._heartbeat.beat("training", self.state.global_step)
        place = len(self.guard.micro_losses) * self.args.world_size + self.args.process_index
        with seeded(self.args.seed, self.state.global_step, place):
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.guard.micro_losses.append(loss)
        return loss

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """On the right device, and with what only the model can tell."""
        return dict(
            self.objective.prepare_inputs(self.accelerator.unwrap_model(self.model), super()._prepare_inputs(inputs))
        )

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,  # noqa: FBT001
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, Measured, torch.Tensor]:
        """What the figures keep of a batch, in the place of logits; Trainer wants labels beside it, which nobody reads."""
        self._heartbeat.beat("evaluating", self.state.global_step)
        with torch.no_grad(), self.compute_loss_context_manager():
            measured = self._figures.measure(model, self._prepare_inputs(inputs))
        return None, measured, measured[0]

    def _count(self, prediction: EvalPrediction, *, compute_result: bool = False) -> dict[str, float]:
        """`compute_metrics` for `batch_eval_metrics`: takes in one batch at a time."""
        self._figures.update(prediction.predictions)
        return self._figures.compute() if compute_result else {}

    # Going on where a checkpoint ended

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """As Trainer's; when it returns or raises, what was saved is on disk.

        Raises:
            DivergedError: loss or gradient became infinite or not a number; the model is as before that step.
            CheckpointError: the checkpoint is not one of this run.
            StorageError: a checkpoint could not be written; the one before it is intact.
        """
        try:
            output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        except BaseException:
            self.saver.finish()
            raise
        self.saver.wait()
        self.agreement.wait()
        return output

    def _init_training_state(
        self,
        max_steps: Any,
        num_update_steps_per_epoch: Any,
        num_train_epochs: Any,
        resume_from_checkpoint: Any,
        trial: Any,
    ) -> tuple[int, int]:
        place = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        self._best_value = self._best_on_disk()
        if resume_from_checkpoint is None:
            self._stream_state = self._stream.state_dict() if self._stream is not None else None
            return (int(place[0]), int(place[1]))
        try:
            self._resumed = json.loads((Path(resume_from_checkpoint) / POSITION).read_text(encoding="utf-8"))
            self._order.load_state_dict(self._resumed["order"])
            self._stream_state = self._resumed["stream"]
            if self._stream is not None:
                self._stream.load_state_dict(self._resumed["stream"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"its place in the data cannot be read: {error!r}"
            raise CheckpointError(str(resume_from_checkpoint), what, "go on from another one") from error
        self._saved_step = self.state.global_step
        if self._best_value is None:  # the checkpoint came without it: the best from here on is what counts
            self.state.best_metric = None
        evaluates = self.args.eval_strategy != IntervalStrategy.NO
        self.args.eval_on_start = evaluates and (self._resumed["lacks_evaluation"] or self._best_value is None)
        return (self._order.epoch, self._order.done)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Trainer warns of weights that the checkpoint lacks; here they are an error, unless they are tied to others."""
        odd = set(load_result.missing_keys) - set(self.model.all_tied_weights_keys) | set(load_result.unexpected_keys)
        if odd:
            what = f"its weights are not those of the model: {', '.join(sorted(odd)[:5])}"
            raise CheckpointError("the checkpoint", what, "go on from one of this model, or start a new run")

    def begin(self) -> None:
        """Called when all is prepared: go on with the log line that was unfinished when the checkpoint was written."""
        sharding.check_wrapped(self)
        if self._resumed:
            losses: list[float] = self._resumed["losses"]
            same = len(losses) == self.args.world_size
            own = losses[self.args.process_index] if same else sum(losses) / len(losses)
            self._tr_loss.fill_(own)
            self._globalstep_last_logged = self._resumed["last_logged_step"]

    def wait_before_fork(self) -> None:
        """Called before loader workers start: a lock that the writing thread holds would stay closed in them for ever."""
        if self.args.dataloader_num_workers:
            self.saver.wait()

    def advance(self) -> None:
        """Called after every optimizer step: the place in the data moves on."""
        self._order.advance()

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        own = self._in_backward
        self.guard.gradient_norm = own.gradient_norm() if own else super()._get_grad_norm(model, grad_norm)
        return self.guard.gradient_norm

    # The optimizer

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: PreTrainedModel | None = None) -> tuple[Any, Any]:
        """As Trainer's, see trainer.loop.optimizers."""
        return optimizers.class_and_arguments(args, model)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """As Trainer's, see trainer.loop.optimizers."""
        if self.optimizer is None:
            made = super().create_optimizer(model)
            decayed = self.get_decay_parameter_names(self.model)
            self._in_backward = optimizers.prepare(made, self.args, self.model, decayed)
        found: torch.optim.Optimizer = self.optimizer
        return found

    # Evaluation and the best weights

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002
        self.wait_before_fork()
        with seeded(self.args.seed, "evaluate", self.state.global_step):
            metrics: dict[str, float] = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        if skip_scheduler:  # the evaluation at start, of which Trainer does not take the best
            self._determine_best_metric(metrics, trial)
        if self.control.should_training_stop:  # early stopping
            self.control.should_save = True
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Keeps the weights of the best evaluation so far; NaN is never the best."""
        if not super()._determine_best_metric(metrics, trial):
            return False
        self.state.best_global_step = self.state.global_step
        metric, value = str(self.args.metric_for_best_model), float(self.state.best_metric)
        sign = -1 if self.args.greater_is_better else 1
        if self._best_value is None or sign * value < sign * self._best_value:  # else: it was, before an interruption
            self._best_value = value
            self._save_best(metric.removeprefix("eval_"), value)
        return True

    def _best_on_disk(self) -> float | None:
        direction: Direction = "max" if self.args.greater_is_better else "min"
        found = best_weights(Path(self.args.output_dir), direction) if self.args.process_index == 0 else None
        value: float | None = self.agreement.gather(found and found.value)[0]
        return value

    def _save_best(self, metric: str, value: float) -> None:
        step, model = self.state.global_step, self.accelerator.unwrap_model(self.model)
        if self._is_sharded:
            weights = sharding.whole_weights(self)
        elif self.args.should_save:
            weights = self.saver.weights(step, model)
        if self.args.should_save:
            self.saver.best(step, model, weights, metric, value)

    # Checkpoints

    @property
    def _is_sharded(self) -> bool:
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def _get_output_dir(self, trial: Any) -> str:
        return self._staging or str(super()._get_output_dir(trial))

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        step = self.state.global_step
        if step == self._saved_step:
            return
        self._heartbeat.beat("saving", step)
        if self.args.should_save:
            self.saver.begin(step)
        self.agreement.wait()
        self._staging = str(Path(self.args.output_dir) / STAGING)
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staging = None
        losses = self.agreement.gather(float(self._tr_loss))  # and with it, every process has written what is its own
        if self.args.should_save:
            self.saver.complete(step, self._position(losses))
        self._saved_step = step

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:  # noqa: FBT001, FBT002
        """As Trainer's; as part of a checkpoint, the weights are copied now and written beside the loop."""
        if self._staging is None or self._is_sharded:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self.saver.add_weights(self.state.global_step, self.accelerator.unwrap_model(self.model))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._is_sharded:
            super()._save_optimizer_and_scheduler(output_dir)
        elif self.args.should_save:
            self.saver.add_optimizer(self.state.global_step, self.optimizer.state_dict())
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _position(self, losses: list[float]) -> dict[str, Any]:
        """Where the run goes on, and what its log has gathered since its last line."""
        ends = self.state.global_step >= self.state.max_steps
        return {
            "order": self._order.state_dict(),
            "stream": self._stream_state,
            "losses": losses,
            "last_logged_step": self._globalstep_last_logged,
            "lacks_evaluation": self.guard.lacks_evaluation,
            "finished": ends or (self.control.should_training_stop and not self.guard.stopped),
            "processes": self.args.world_size,
        }


def is_finished(checkpoint: Path) -> bool:
    """Whether the run that `checkpoint` is of had nothing more to do."""
    return bool(json.loads((checkpoint / POSITION).read_text(encoding="utf-8"))["finished"])

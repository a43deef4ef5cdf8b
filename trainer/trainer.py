"""transformers.Trainer, with what the pipeline promises added through its hooks.

    order       rows, augmentation and dropout depend on seed and position only, so a resumed run and a run on another
                number of processes see the same (`get_train_dataloader`, `training_step`)
    resuming    the place in the data and the unfinished log line are part of a checkpoint (`_init_training_state`)
    checkpoints whole or not at all, on a cadence of their own, written beside the loop (`_save_checkpoint` and what it
                calls; trainer.checkpoints, trainer.saving)
    best        kept apart from the checkpoints, the evaluation at start included (`_evaluate`, `_determine_best_metric`)
    figures     token- or row-weighted over the whole split, in memory that does not grow with it
                (`preprocess_logits_for_metrics`, `compute_metrics` with `batch_eval_metrics`)
    guard       all processes stop at the same step, and before a step that is not finite (`_get_grad_norm`, callbacks)

Private names of Trainer that this class relies on are in `PRIVATE_HOOKS` and `PRIVATE_STATE`; a contract test fails when
one moves.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalPrediction

from params import CheckpointError, DivergedError
from trainer import sharding
from trainer.agreement import Agreement
from trainer.checkpoints import (
    IDENTITY,
    POSITION,
    STAGING,
    best_weights,
    identity_text,
    newest_sound,
    retain,
    seal,
    seal_best,
)
from trainer.heartbeat import Heartbeat
from trainer.randomness import seeded
from trainer.sampling import Collator, EpochOrder, Examples, Loaded, MicroBatches, Share
from trainer.saving import Snapshot, Writer, nbytes, writing
from trainer.streaming import Streamed
from trainer.write_points import passed

if TYPE_CHECKING:
    from trainer.objectives import Meter, Objective, State

PRIVATE_HOOKS = (
    "_init_training_state",
    "_issue_warnings_after_load",
    "_get_grad_norm",
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
        objective: gives the collator, and the figures of an evaluation.
        state: what the objective learned from the train split.
        keep_checkpoints: how many checkpoints stay.
        save_minutes: a checkpoint is due after so many minutes, beside every `args.save_steps` steps.
        lengths: tokens of each training sequence, to train on batches of like length.
        identity: what determines the run, written into its checkpoints.
        heartbeat: where this process shows that it is alive.
        stop_requested: asked at every optimizer step; True on one process stops all of them, with a checkpoint.
        model, args, eval_dataset, processing_class, callbacks: as in Trainer.
        train_dataset: as in Trainer; an iterable one is read as trainer.streaming says.
    """

    def __init__(
        self,
        *,
        objective: Objective[Any],
        state: State,
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
            compute_metrics=_StreamedMetrics(lambda: objective.meter(state)),
            preprocess_logits_for_metrics=lambda logits, labels: objective.score(
                logits[0] if isinstance(logits, tuple) else logits, labels
            ),
            callbacks=callbacks,
        )
        self._keep_checkpoints = keep_checkpoints
        self._save_minutes = save_minutes
        self._lengths = lengths
        self._run = identity_text(identity)
        self._heartbeat = heartbeat
        self._stop_requested = stop_requested
        self._agreement = Agreement()
        self._writer = Writer()
        self._weights, self._optimizer_state = Snapshot(), Snapshot()
        self._copied: tuple[int, Any] = (-1, None)
        self._staging: Path | None = None
        self._to_write: list[Callable[[], None]] = []
        self._bytes_to_write = 0
        self._saved_step = -1
        self._saved_at_s = time.monotonic()
        self._resumed: dict[str, Any] = {}
        self._best_value: float | None = None
        self._stream_state: dict[str, Any] | None = None
        self._losses: list[torch.Tensor] = []
        self._gradient_norm: Any = 0.0
        self._stops, self._is_due, self._lacks_evaluation = False, False, False
        self.rows: list[list[int]] = []
        """Row ids of each micro-batch of the current optimizer step, on this process."""
        self.losses: list[float] = []
        """Loss of each of them."""
        self.stop_at_step: int | None = None
        """Stop after this step as if asked to."""
        self.was_stopped = False
        """Whether training ended because it was asked to, before its last step."""
        self.add_callback(_Guard(self))

    # Data and its order

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This process's own micro-batches, so that accelerate has nothing to deal out."""
        streams = isinstance(self.train_dataset, IterableDataset)
        share = Share(
            micro_batch=self._train_batch_size,
            accumulation=self.args.gradient_accumulation_steps,
            processes=self.args.world_size,
            process=self.args.process_index,
        )
        order = None
        if not streams:
            size = share.global_batch_size
            rows = len(self.train_dataset)
            order = EpochOrder(rows, seed=self.args.seed, global_batch_size=size, lengths=self._lengths)
        self._order = MicroBatches(order, share)
        self._stream = Streamed(self.train_dataset, self.args.seed) if streams else None
        workers = min(self.args.dataloader_num_workers, 1 if streams else self.args.dataloader_num_workers)
        return DataLoader(
            Examples(self.train_dataset, self.args.seed) if self._stream is None else self._stream,
            batch_sampler=self._order,
            collate_fn=Collator(self.data_collator, self.args.seed),
            generator=torch.Generator(),  # otherwise every start of workers would draw from the process's random state
            num_workers=workers,  # a stream is read by one: several would each read all of it
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers and workers > 0,
            prefetch_factor=self.args.dataloader_prefetch_factor if workers else None,
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
        place = len(self._losses) * self.args.world_size + self.args.process_index
        with seeded(self.args.seed, self.state.global_step, place):
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append(loss)
        return loss

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's, with a sign of life."""
        self._heartbeat.beat("evaluating", self.state.global_step)
        return super().prediction_step(*args, **kwargs)

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
            self._writer.finish()
            raise
        self._writer.wait()
        self._agreement.wait()
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
        self.args.eval_on_start = self._resumed["lacks_evaluation"] or self._best_value is None
        return (self._order.epoch, self._order.done)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Trainer warns of weights that the checkpoint lacks; here they are an error, unless they are tied to others."""
        odd = set(load_result.missing_keys) - set(self.model.all_tied_weights_keys) | set(load_result.unexpected_keys)
        if odd:
            what = f"its weights are not those of the model: {', '.join(sorted(odd)[:5])}"
            raise CheckpointError("the checkpoint", what, "go on from one of this model, or start a new run")

    def restore_log(self) -> None:
        """Go on with the log line that was unfinished when the checkpoint was written."""
        if self._resumed:
            losses: list[float] = self._resumed["losses"]
            same = len(losses) == self.args.world_size
            own = losses[self.args.process_index] if same else sum(losses) / len(losses)
            self._tr_loss.fill_(own)
            self._globalstep_last_logged = self._resumed["last_logged_step"]

    # The guard around a step

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        self._gradient_norm = super()._get_grad_norm(model, grad_norm)
        return self._gradient_norm

    def look_around(self) -> None:
        """Before the weights change: is the step finite, and is there a reason to save or to stop?"""
        self.losses, norm = [float(loss) for loss in self._losses], float(self._gradient_norm or 0.0)
        scaled = self.accelerator.scaler is not None  # fp16: infinite gradients are skipped and the scale is lowered
        diverged = not math.isfinite(sum(self.losses)) or not (scaled or math.isfinite(norm))
        leads = self.args.process_index == 0 and self._save_minutes is not None
        is_due = leads and time.monotonic() - self._saved_at_s >= 60 * (self._save_minutes or 0)
        stops = self._stop_requested() or self.state.global_step + 1 == self.stop_at_step
        diverged, self._stops, self._is_due = self._agreement.any(diverged, stops, is_due)
        if diverged:
            raise self._divergence(norm)

    def end_step(self, state: TrainerState, control: TrainerControl) -> None:
        """After the weights changed: move on in the data, and decide on saving and stopping."""
        self._losses = []
        self._order.advance()
        self._lacks_evaluation = False
        ends = state.global_step >= state.max_steps
        control.should_save = ends or self._is_due or state.global_step % self.args.save_steps == 0
        if self._stops and not ends:
            self._lacks_evaluation = control.should_evaluate  # too long for who waits: the next start makes up for it
            control.should_evaluate = False
            control.should_save = control.should_training_stop = self.was_stopped = True

    def _divergence(self, norm: float) -> DivergedError:
        """What went wrong, on whatever process; every process raises the same."""
        odd = [(loss, rows) for loss, rows in zip(self.losses, self.rows, strict=True) if not math.isfinite(loss)]
        found = [pair for pairs in self._agreement.gather(odd) for pair in pairs]
        rows = sorted({row for _, of in found for row in of})
        said = f"the loss is {found[0][0]}" if found else f"the loss is finite, but the norm of the gradient is {norm}"
        if not found:
            rows = sorted({row for of_all in self._agreement.gather(self.rows) for of in of_all for row in of})
        newest = None
        if self.args.process_index == 0:
            self._writer.wait()
            newest = newest_sound(Path(self.args.output_dir), self._run)
        kept = self._agreement.gather(newest)[0]
        fix = "lower training.learning_rate, or look at these rows with `python -m tasks trace`; "
        fix += f"the last checkpoint is {kept.name}" if kept else "there is no checkpoint before it"
        return DivergedError("training", f"{said} at step {self.state.global_step + 1}, rows {rows}", fix)

    # Evaluation and the best weights

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002
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
        direction: Literal["min", "max"] = "max" if self.args.greater_is_better else "min"
        found = best_weights(Path(self.args.output_dir), direction) if self.args.process_index == 0 else None
        value: float | None = self._agreement.gather(found and found.value)[0]
        return value

    def _save_best(self, metric: str, value: float) -> None:
        weights = self._copied_weights()
        if not self.args.should_save:
            return
        staging = Path(self.args.output_dir) / ".best"
        step, model = self.state.global_step, self.accelerator.unwrap_model(self.model)

        def write() -> None:
            shutil.rmtree(staging, ignore_errors=True)
            model.save_pretrained(str(staging), state_dict=dict(weights))  # it empties what it is given
            passed("best.weights")
            seal_best(staging, step=step, metric=metric, value=value)

        self._writer.give(writing(staging, nbytes(weights), write))

    # Checkpoints

    @property
    def _is_sharded(self) -> bool:
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def _copied_weights(self) -> Any:
        """The whole model's weights at this step, in this machine's memory; from all processes if they are shared out."""
        if self._is_sharded:
            return sharding.whole_weights(self)
        if self.args.should_save and self._copied[0] != self.state.global_step:
            self._writer.wait()
            self._copied = (self.state.global_step, self._weights.take(dict(self.model.state_dict())))
        return self._copied[1]

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging) if self._staging else str(super()._get_output_dir(trial))

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        step = self.state.global_step
        if step == self._saved_step:
            return
        self._heartbeat.beat("saving", step)
        folder = Path(self.args.output_dir)
        staging, name = folder / STAGING, f"checkpoint-{step}"
        self._to_write, self._bytes_to_write = [], 0
        if self.args.should_save:
            self._writer.wait()
            shutil.rmtree(staging, ignore_errors=True)
            (staging / name).mkdir(parents=True)
        self._agreement.wait()
        self._staging = staging
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staging = None
        losses = self._agreement.gather(float(self._tr_loss))  # and with it, every process has written what is its own
        if self.args.should_save:
            self._write_position(staging / name, losses)
            passed("checkpoint.state")
            work = partial(self._finish_checkpoint, self._to_write, staging / name, folder / name)
            self._writer.give(writing(staging, self._bytes_to_write, work))
        self._saved_step = step
        self._saved_at_s = time.monotonic()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:  # noqa: FBT001, FBT002
        """As Trainer's; as part of a checkpoint, the weights are copied now and written beside the loop."""
        if self._staging is None or self._is_sharded:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            weights, target = self._copied_weights(), self.accelerator.unwrap_model(self.model)
            self._bytes_to_write += nbytes(weights)
            self._to_write.append(lambda: target.save_pretrained(output_dir, state_dict=dict(weights)))
            self._to_write.append(lambda: passed("checkpoint.weights"))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._is_sharded:
            super()._save_optimizer_and_scheduler(output_dir)
        elif self.args.should_save:
            state = self._optimizer_state.take(self.optimizer.state_dict())
            self._bytes_to_write += nbytes(state)
            self._to_write.append(lambda: torch.save(state, Path(output_dir) / "optimizer.pt"))
            self._to_write.append(lambda: passed("checkpoint.optimizer"))
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _finish_checkpoint(self, writes: list[Callable[[], None]], staged: Path, target: Path) -> None:
        for write in writes:
            write()
        seal(staged, target)
        retain(target.parent, self._keep_checkpoints)

    def _write_position(self, checkpoint: Path, losses: list[float]) -> None:
        ends = self.state.global_step >= self.state.max_steps
        position = {
            "order": self._order.state_dict(),
            "stream": self._stream_state,
            "losses": losses,
            "last_logged_step": self._globalstep_last_logged,
            "lacks_evaluation": self._lacks_evaluation,
            "finished": ends or (self.control.should_training_stop and not self.was_stopped),
            "processes": self.args.world_size,
        }
        (checkpoint / POSITION).write_text(json.dumps(position, indent=1), encoding="utf-8")
        (checkpoint / IDENTITY).write_text(self._run, encoding="utf-8")


def is_finished(checkpoint: Path) -> bool:
    """Whether the run that `checkpoint` is of had nothing more to do."""
    return bool(json.loads((checkpoint / POSITION).read_text(encoding="utf-8"))["finished"])


class _Guard(TrainerCallback):
    """Hands the instants of a step on to the trainer."""

    def __init__(self, trainer: EvergreenTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        sharding.check_wrapped(self._trainer)
        self._trainer.restore_log()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._trainer.look_around()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._trainer.end_step(state, control)


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

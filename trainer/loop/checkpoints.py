"""What a Trainer resumes from, and what it writes: at most one checkpoint a step, complete or not there at all, and the best weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import IntervalStrategy

from params.sections.base import Direction
from trainer.checkpoints import saver, sealed
from trainer.loop import sharding
from trainer.loop.batch import is_evaluated_on_the_way


class Checkpoints:
    """The checkpoints of a run, and the weights of its best evaluation, interrupted starts included.

    The loop copies the tensors; a thread, `writer`, writes them.

    Args:
        trainer: an EvergreenTrainer.
        keep: number of checkpoints to keep.
        run: content of the run's `run.json`.
    """

    def __init__(self, trainer: Any, *, keep: int, run: str) -> None:
        self._trainer = trainer
        self._folder = Path(trainer.args.output_dir)
        self._keep = keep
        self._run = run
        self.writer = saver.BackgroundWorker()
        self._weights, self._optimizer = saver.TensorSnapshotter(), saver.TensorSnapshotter()
        self._copied: tuple[int, Any] = (-1, None)
        self._writes: list[Callable[[], object]] = []
        self._needed = 0
        self._saved_step = -1
        self._best: float | None = None  # whose weights are saved
        self.resumed: sealed.ResumePosition | None = None
        """The position that this start resumed from."""
        self.staging: str | None = None
        """The folder of the checkpoint that is being written."""

    @property
    def _step(self) -> int:
        return int(self._trainer.state.global_step)

    @property
    def _model(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    @property
    def _staged(self) -> Path:
        return self._folder / sealed.STAGING / f"checkpoint-{self._step}"

    def newest(self) -> Path | None:
        """Return the newest checkpoint that the run can resume from."""
        self.writer.wait()
        return sealed.find_newest_setting_broken_aside(self._folder, self._run)

    def find_best(self) -> None:
        """Find the best weights of earlier starts in the run's folder."""
        args = self._trainer.args
        direction: Direction = "max" if args.greater_is_better else "min"
        found = sealed.find_best_weights(self._folder, direction) if args.process_index == 0 else None
        self._best = self._trainer.collectives.gather(found and found.value)[0]

    def save_if_best(self, value: float) -> None:
        """Save the current weights if `value` is the best; after an interruption, the best may be saved already."""
        args, step, model = self._trainer.args, self._step, self._model
        sign = -1 if args.greater_is_better else 1
        if self._best is not None and sign * value >= sign * self._best:
            return
        self._best = value
        weights = sharding.gather_whole_weights(self._trainer) if sharding.is_sharded(self._trainer) else None
        if not args.should_save:
            return
        weights, staging = weights or self._copy_weights(), self._folder / ".best"
        metric = str(args.metric_for_best_model).removeprefix("eval_")
        # a longer run (trainer.loop.other_length) does not evaluate there
        only_at_end = not is_evaluated_on_the_way(step, args.eval_steps, args.eval_delay or 0)

        def write() -> None:
            with saver.guard_disk_space(staging, saver.count_tensor_bytes(weights)):
                shutil.rmtree(staging, ignore_errors=True)
                _write(model, str(staging), weights)
                sealed.pass_kill_point("best.weights")
                sealed.replace_best_weights(staging, step=step, metric=metric, value=value, keep_others=only_at_end)

        self.writer.submit(write)

    def resume(self, checkpoint: Path) -> tuple[int, int]:
        """Continue the data of a checkpoint; return the epoch, and its micro-batches that are done.

        Raises:
            CheckpointError: the checkpoint does not belong to this run.
        """
        trainer = self._trainer
        self.resumed = position = sealed.ResumePosition.load(checkpoint)
        trainer.training_data.load_state_dict({"order": position.order, "stream": position.stream})
        self._saved_step = self._step
        if self._best is None:  # the best weights are gone: only evaluations from here on count
            trainer.state.best_metric = None
        evaluates = trainer.args.eval_strategy != IntervalStrategy.NO
        trainer.args.eval_on_start = evaluates and (position.lacks_evaluation or self._best is None)
        return trainer.training_data.epoch, trainer.training_data.micro_batches_done

    def save(self, write: Callable[[], None], loss: Callable[[], float], last_logged_step: int) -> None:
        """Let `write` write a checkpoint of this step, unless there is one; `loss` is this process's since the last log line.

        Raises:
            StorageError: the disk has less room than the last checkpoint needed.
        """
        trainer, step, staged = self._trainer, self._step, self._staged
        if step == self._saved_step:
            return
        trainer.heartbeat.beat("saving", step)
        if trainer.args.should_save:
            self.writer.wait()
            shutil.rmtree(self._folder / sealed.STAGING, ignore_errors=True)
            # As much as the last one needed; otherwise a small file would fail first, without saying how much is missing.
            saver.check_disk_space(self._folder, self._needed)
            self._writes, self._needed = [], 0
            staged.mkdir(parents=True)
        trainer.collectives.barrier()
        self.staging = str(self._folder / sealed.STAGING)
        try:
            write()
        finally:
            self.staging = None
        losses = trainer.collectives.gather(loss())  # waits until every process has written its part
        self._saved_step = step
        if not trainer.args.should_save:
            return
        ended = step >= trainer.state.max_steps
        position = sealed.ResumePosition(
            **trainer.training_data.state_dict(),
            losses=losses,
            last_logged_step=last_logged_step,
            lacks_evaluation=trainer.guard.lacks_evaluation,
            finished=ended or (trainer.control.should_training_stop and not trainer.guard.stopped),
            processes=trainer.args.world_size,
        )
        position.save(staged)
        (staged / sealed.IDENTITY).write_text(self._run, encoding="utf-8")
        sealed.pass_kill_point("checkpoint.state")
        writes, needed, target = self._writes, self._needed, self._folder / f"checkpoint-{step}"

        def finish() -> None:
            with saver.guard_disk_space(self._folder / sealed.STAGING, needed):
                for part in writes:
                    part()
                sealed.seal_and_rename(staged, target)
                sealed.delete_old_checkpoints(self._folder, self._keep)

        self.writer.submit(finish)

    def add_weights(self) -> None:
        """Add the weights to the checkpoint that is being written."""
        weights, model, target = self._copy_weights(), self._model, str(self._staged)
        self._needed += saver.count_tensor_bytes(weights)
        self._writes += [lambda: _write(model, target, weights), lambda: sealed.pass_kill_point("checkpoint.weights")]

    def add_optimizer(self, state: Any) -> None:
        """Add the optimizer's state to the checkpoint that is being written."""
        copied, target = self._optimizer.take(state), self._staged / "optimizer.pt"
        self._needed += saver.count_tensor_bytes(copied)
        self._writes += [lambda: torch.save(copied, target), lambda: sealed.pass_kill_point("checkpoint.optimizer")]

    def _copy_weights(self) -> Any:
        """Return a copy of the weights at this step, with adapters of these only; best weights and checkpoint share it."""
        if self._copied[0] != self._step:
            self.writer.wait()  # the thread may still read the previous copy
            model, state = self._model, self._model.state_dict()
            if hasattr(model, "peft_config"):
                weights = model.named_parameters(remove_duplicate=False)  # peft wants both names of a shared one
                trained = {name for name, weight in weights if weight.requires_grad}
                state = {name: value for name, value in state.items() if name in trained}
            self._copied = (self._step, self._weights.take(dict(state)))
        return self._copied[1]


def _write(model: Any, target: str, weights: Any) -> None:
    # save_pretrained empties the mapping it gets. Without the argument, peft asks the Hub for the base model's vocabulary.
    adapters: dict[str, Any] = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.save_pretrained(target, state_dict=dict(weights), **adapters)

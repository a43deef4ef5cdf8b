"""Write checkpoints in the background: the training loop waits only until tensors are copied; a thread does the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from params import EvergreenError, StorageError
from params.foundation.artifacts import storage_errors
from trainer.checkpoints.fault_points import reached
from trainer.checkpoints.position import Position
from trainer.checkpoints.sealed import IDENTITY, STAGING, delete_old_checkpoints, newest_valid, seal, seal_best

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Snapshot:
    """Copies of tensors in CPU memory, which every later copy of the same tensors uses again."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def take(self, state: Any) -> Any:
        """Return `state` with every tensor copied; tensors that share memory share it in the copy too."""
        copies: dict[tuple[Any, ...], torch.Tensor] = {}
        old, self._buffers = self._buffers, []

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else (id(tensor),)
            if key not in copies:
                place = old[len(copies)] if len(copies) < len(old) else None
                if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
                    place = torch.empty(tensor.shape, dtype=tensor.dtype)
                copies[key] = place.copy_(tensor.detach())
                self._buffers.append(place)
            return copies[key]

        return tree_map_only(torch.Tensor, copied, state)


class Writer:
    """A thread that runs functions one after another; after a failure it skips the rest, and the next call raises it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._submitted: list[Future[None]] = []
        self._failed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread, after everything submitted before."""
        self._submitted.append(self._thread.submit(self._run, work))

    def raise_if_failed(self) -> None:
        """Raise the error of work that has failed, such as a StorageError, without waiting."""
        for future in [f for f in self._submitted if f.done()]:
            self._submitted.remove(future)
            future.result()

    def wait(self) -> None:
        """Wait until all work is done, and raise its error if it failed.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        futures.wait(self._submitted)
        self.raise_if_failed()

    def drain(self) -> None:
        """Wait until all work is done, and ignore its errors: another one is already being raised."""
        futures.wait(self._submitted)

    def _run(self, work: Callable[[], None]) -> None:
        if not self._failed:
            try:
                work()
            except BaseException:
                self._failed = True
                raise


class Saver:
    """Writes checkpoints and best weights to a run's folder, whose `run.json` has the content `run`.

    The loop copies the tensors; a thread, `writer`, writes them.
    """

    def __init__(self, folder: Path, *, keep: int, run: str) -> None:
        self._folder = folder
        self._keep = keep
        self._run = run
        self.writer = Writer()
        self._weights, self._optimizer = Snapshot(), Snapshot()
        self._copied: tuple[int, Any] = (-1, None)
        self._writes: list[Callable[[], None]] = []
        self._needed = 0

    def copy_weights(self, step: int, model: PreTrainedModel) -> Any:
        """Return a copy of the weights at this step; best weights and checkpoint of one step share it."""
        if self._copied[0] != step:
            self.writer.wait()  # the thread may still read the previous copy
            self._copied = (step, self._weights.take(_trained_weights(model)))
        return self._copied[1]

    def start_checkpoint(self, step: int) -> None:
        """Make an empty folder `.staging/checkpoint-<step>`, after waiting for the checkpoint before it.

        Raises:
            StorageError: the disk has less room than the last checkpoint needed.
        """
        self.writer.wait()
        shutil.rmtree(self._folder / STAGING, ignore_errors=True)
        # As much as the last one needed; otherwise a small file would fail first, without saying how much is missing.
        _check_room(self._folder, self._needed)
        self._writes, self._needed = [], 0
        self._staged(step).mkdir(parents=True)

    def add_weights(self, step: int, model: PreTrainedModel) -> None:
        """Add the weights to the started checkpoint."""
        weights, target = self.copy_weights(step, model), str(self._staged(step))
        self._add("checkpoint.weights", weights, lambda: _write(model, target, weights))

    def add_optimizer(self, step: int, state: Any) -> None:
        """Add the optimizer's state to the started checkpoint."""
        copied, target = self._optimizer.take(state), self._staged(step) / "optimizer.pt"
        self._add("checkpoint.optimizer", copied, lambda: torch.save(copied, target))

    def finish_checkpoint(self, step: int, position: Position) -> None:
        """Add the position, and let the thread write and seal the checkpoint; every process has written its part."""
        staged, target = self._staged(step), self._folder / f"checkpoint-{step}"
        position.save(staged)
        (staged / IDENTITY).write_text(self._run, encoding="utf-8")
        reached("checkpoint.state")
        writes = self._writes

        def write() -> None:
            for part in writes:
                part()
            seal(staged, target)
            delete_old_checkpoints(self._folder, self._keep)

        self.writer.submit(with_disk_full_handling(self._folder / STAGING, self._needed, write))

    def save_best(self, step: int, model: PreTrainedModel, weights: Any, metric: str, value: float) -> None:
        """Let the thread write `weights` as the best so far, before any later checkpoint."""
        staging = self._folder / ".best"

        def write() -> None:
            shutil.rmtree(staging, ignore_errors=True)
            _write(model, str(staging), weights)
            reached("best.weights")
            seal_best(staging, step=step, metric=metric, value=value)

        self.writer.submit(with_disk_full_handling(staging, nbytes(weights), write))

    def newest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint that the run can resume from."""
        self.writer.wait()
        return newest_valid(self._folder, self._run)

    def _staged(self, step: int) -> Path:
        return self._folder / STAGING / f"checkpoint-{step}"

    def _add(self, point: str, state: Any, write: Callable[[], None]) -> None:
        self._needed += nbytes(state)
        self._writes += [write, partial(reached, point)]


def _trained_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights of a model; with adapters, only the trainable ones."""
    state: dict[str, torch.Tensor] = dict(model.state_dict())
    if not hasattr(model, "peft_config"):
        return state
    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    return {name: value for name, value in state.items() if name in trainable}


def _write(model: PreTrainedModel, target: str, weights: Any) -> None:
    # save_pretrained empties the mapping it gets. Without the argument, peft asks the Hub for the base model's vocabulary.
    adapters: dict[str, Any] = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.save_pretrained(target, state_dict=dict(weights), **adapters)


def nbytes(state: Any) -> int:
    """Return the bytes of all tensors in `state`."""
    return sum(leaf.nbytes for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))


def with_disk_full_handling(staging: Path, needed: int, work: Callable[[], None]) -> Callable[[], None]:
    """Wrap `work`, which writes `needed` bytes to `staging`: on a full disk, raise how much is missing and clean up."""

    def guarded() -> None:
        try:
            _check_room(staging.parent, needed)
            with storage_errors(staging.parent):
                work()
        except EvergreenError as error:
            shutil.rmtree(staging, ignore_errors=True)  # leaves room for writing the error report
            if isinstance(error, StorageError):
                _check_room(staging.parent, needed)
            raise

    return guarded


def _check_room(folder: Path, needed: int) -> None:
    if (free := shutil.disk_usage(folder).free) < needed:
        needs, has, lacks = (f"{size / 2**20:.1f} MiB" for size in (needed, free, needed - free))
        what = f"a checkpoint needs {needs} and {has} are free: {lacks} are missing"
        fix = "free that much and start again; the run resumes from the last checkpoint"
        raise StorageError(str(folder), what, fix)

"""Write checkpoints beside the training loop: the loop stops only while tensors are copied, a thread does the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from params import EvergreenError, StorageError
from params.artifacts import storage_errors
from trainer.checkpoints.fault_points import reached
from trainer.checkpoints.sealed import IDENTITY, POSITION, STAGING, newest_sound, retain, seal, seal_best

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Snapshot:
    """Copies of tensors in this machine's memory; a second copy of the same tensors goes into the memory of the first."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def take(self, state: Any) -> Any:
        """`state` with every tensor copied; tensors that share memory share it in the copy too."""
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
    """One thread that does what it is given, in that order; a failure is raised at the next call and ends all that follows."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._given: list[Future[None]] = []
        self._failed = False

    def give(self, work: Callable[[], None]) -> None:
        """Have `work` done when all that was given before is done."""
        self._given.append(self._thread.submit(self._run, work))

    def check(self) -> None:
        """Raise what work has failed of, without waiting for any.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        self._settle([f for f in self._given if f.done()])

    def wait(self) -> None:
        """Wait until everything is done.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        self._settle(list(self._given))

    def finish(self) -> None:
        """Wait until everything is done, for one who has another failure to report."""
        futures.wait(self._given)

    def _settle(self, done: list[Future[None]]) -> None:
        for future in done:
            self._given.remove(future)
            future.result()

    def _run(self, work: Callable[[], None]) -> None:
        if not self._failed:
            try:
                work()
            except BaseException:
                self._failed = True
                raise


class Saver:
    """What one process writes of its run: checkpoints and best weights, copied by the loop and written beside it.

    Args:
        folder: the run's folder.
        keep: how many checkpoints stay.
        run: content of the run's `run.json`, see trainer.checkpoints.sealed.
    """

    def __init__(self, folder: Path, *, keep: int, run: str) -> None:
        self._folder = folder
        self._keep = keep
        self._run = run
        self._writer = Writer()
        self._weights, self._optimizer = Snapshot(), Snapshot()
        self._copied: tuple[int, Any] = (-1, None)
        self._writes: list[Callable[[], None]] = []
        self._needed = 0
        self.check, self.wait, self.finish = self._writer.check, self._writer.wait, self._writer.finish

    def weights(self, step: int, model: PreTrainedModel) -> Any:
        """The weights at this step; best weights and checkpoint of one step share the copy."""
        if self._copied[0] != step:
            self._writer.wait()  # the copy before is still being written
            self._copied = (step, self._weights.take(_learned(model)))
        return self._copied[1]

    def begin(self, step: int) -> None:
        """Begin a checkpoint: an empty folder `.staging/checkpoint-<step>`, once the one before is written."""
        self._writer.wait()
        shutil.rmtree(self._folder / STAGING, ignore_errors=True)
        free = shutil.disk_usage(self._folder).free
        # Judged by what the one before needed; else a small file would fail first, and nobody say how much is missing.
        if free < self._needed:
            raise _no_room(self._folder / STAGING, self._needed, free)
        self._writes, self._needed = [], 0
        self._staged(step).mkdir(parents=True)

    def add_weights(self, step: int, model: PreTrainedModel) -> None:
        """Have the weights written to the checkpoint that was begun."""
        weights, target = self.weights(step, model), str(self._staged(step))
        self._add("checkpoint.weights", weights, lambda: _write(model, target, weights))

    def add_optimizer(self, step: int, state: Any) -> None:
        """Have the optimizer's state written to the checkpoint that was begun."""
        copied, target = self._optimizer.take(state), self._staged(step) / "optimizer.pt"
        self._add("checkpoint.optimizer", copied, lambda: torch.save(copied, target))

    def complete(self, step: int, position: dict[str, Any]) -> None:
        """Add where the run goes on, and have the checkpoint written and sealed; every process has written its part."""
        staged, target = self._staged(step), self._folder / f"checkpoint-{step}"
        (staged / POSITION).write_text(json.dumps(position, indent=1), encoding="utf-8")
        (staged / IDENTITY).write_text(self._run, encoding="utf-8")
        reached("checkpoint.state")
        writes = self._writes

        def write() -> None:
            for part in writes:
                part()
            seal(staged, target)
            retain(self._folder, self._keep)

        self._writer.give(writing(self._folder / STAGING, self._needed, write))

    def best(self, step: int, model: PreTrainedModel, weights: Any, metric: str, value: float) -> None:
        """Have `weights` written as the best so far, before any later checkpoint."""
        staging = self._folder / ".best"

        def write() -> None:
            shutil.rmtree(staging, ignore_errors=True)
            _write(model, str(staging), weights)
            reached("best.weights")
            seal_best(staging, step=step, metric=metric, value=value)

        self._writer.give(writing(staging, nbytes(weights), write))

    def newest(self) -> Path | None:
        """The newest checkpoint that the run could go on from."""
        self._writer.wait()
        return newest_sound(self._folder, self._run)

    def _staged(self, step: int) -> Path:
        return self._folder / STAGING / f"checkpoint-{step}"

    def _add(self, point: str, state: Any, write: Callable[[], None]) -> None:
        self._needed += nbytes(state)
        self._writes += [write, partial(reached, point)]


def _learned(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights of a model; of one with adapters only those that learn: the others are the base model's."""
    state: dict[str, torch.Tensor] = dict(model.state_dict())
    if not hasattr(model, "peft_config"):
        return state
    learned = {name for name, weight in model.named_parameters() if weight.requires_grad}
    return {name: value for name, value in state.items() if name in learned}


def _write(model: PreTrainedModel, target: str, weights: Any) -> None:
    # save_pretrained empties the mapping that it is given; peft would ask the Hub whether the base model's words are its own
    adapters: dict[str, Any] = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.save_pretrained(target, state_dict=dict(weights), **adapters)


def nbytes(state: Any) -> int:
    """Bytes of all tensors in `state`."""
    total = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += tensor.nbytes
        return tensor

    tree_map_only(torch.Tensor, count, state)
    return total


def writing(staging: Path, needed: int, work: Callable[[], None]) -> Callable[[], None]:
    """`work` that writes `needed` bytes to `staging`; on a disk that is full it says how much is missing, and tidies up."""

    def guarded() -> None:
        try:
            free = shutil.disk_usage(staging.parent).free
            if free < needed:
                raise _no_room(staging, needed, free)
            with storage_errors(staging.parent):
                work()
        except EvergreenError as error:
            shutil.rmtree(staging, ignore_errors=True)  # room for whoever has to report this
            if isinstance(error, StorageError) and (free := shutil.disk_usage(staging.parent).free) < needed:
                raise _no_room(staging, needed, free) from error
            raise

    return guarded


def _no_room(staging: Path, needed: int, free: int) -> StorageError:
    unit = 2**20
    what = f"a checkpoint needs {needed / unit:.1f} MiB and {free / unit:.1f} MiB are free: "
    what += f"{(needed - free) / unit:.1f} MiB are missing"
    return StorageError(str(staging.parent), what, "make room and start again: it goes on from the checkpoint before")

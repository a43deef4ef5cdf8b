"""Write checkpoints beside the training loop: the loop stops only while tensors are copied, a thread does the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from params import EvergreenError, StorageError
from params.artifacts import storage_errors


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

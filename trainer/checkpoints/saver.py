"""What writes checkpoints in the background: the training loop waits only until tensors are copied; a thread does the rest."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from params import EvergreenError, StorageError
from params.foundation.artifacts import translate_disk_errors


class TensorSnapshotter:
    """Copies of tensors in CPU memory, which every later copy of the same tensors uses again."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def take(self, state: Any) -> Any:
        """Return `state` with every tensor copied; tensors that share memory share it in the copy too."""
        copies: dict[tuple[Any, ...], torch.Tensor] = {}
        old, self._buffers = self._buffers, []

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            key = (tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride(), tensor.dtype)
            if key not in copies:
                place = old[len(copies)] if len(copies) < len(old) else None
                if place is None or (place.shape, place.stride(), place.dtype) != key[1:]:
                    # with other strides, a matrix product of the state adds up in another order, to other bits
                    place = torch.empty_like(tensor, device="cpu")
                copies[key] = place.copy_(tensor.detach())
                self._buffers.append(place)
            return copies[key]

        return tree_map_only(torch.Tensor, copied, state)


class BackgroundWorker:
    """A thread that runs functions one after another; a failure ends those after it, too, and the next call raises it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._last: Future[None] | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread, after everything submitted before."""
        before = self._last

        def run() -> None:
            if before:
                before.result()
            work()

        self._last = self._thread.submit(run)

    def raise_if_failed(self) -> None:
        """Raise the error of work that has failed, such as a StorageError, without waiting."""
        if self._last and self._last.done():
            self.wait()

    def wait(self) -> None:
        """Wait until all work is done, and raise its error if it failed.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        last, self._last = self._last, None
        if last:
            last.result()

    def drain(self) -> None:
        """Wait until all work is done, and ignore its errors: another one is already being raised."""
        if self._last:
            futures.wait([self._last])


def count_tensor_bytes(state: Any) -> int:
    """Return the bytes of all tensors in `state`."""
    return sum(leaf.nbytes for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def guard_disk_space(staging: Path, needed: int) -> Iterator[None]:
    """For a block that writes `needed` bytes to `staging`: on a full disk, raise how much is missing and clean up."""
    try:
        check_disk_space(staging.parent, needed)
        with translate_disk_errors(staging.parent):
            yield
    except EvergreenError as error:
        shutil.rmtree(staging, ignore_errors=True)  # leaves room for writing the error report
        if isinstance(error, StorageError):
            check_disk_space(staging.parent, needed)
        raise


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise StorageError if the disk of a folder has less room than a checkpoint needs, in bytes."""
    if (free := shutil.disk_usage(folder).free) < needed:
        needs, has, lacks = (f"{size / 2**20:.1f} MiB" for size in (needed, free, needed - free))
        what = f"a checkpoint needs {needs} and {has} are free: {lacks} are missing"
        fix = "free that much and start again; the run resumes from the last checkpoint"
        raise StorageError(str(folder), what, fix)

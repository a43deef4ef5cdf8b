"""What the processes of a training tell each other, whatever devices they train on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


class Collectives:
    """Collective operations over a CPU process group of its own, so that no device has to wait."""

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo") if several else None

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether any process set it."""
        return self.start_any(*flags)()

    def start_any(self, *flags: bool) -> Callable[[], tuple[bool, ...]]:
        """Start to find out for each flag whether any process set it; return what waits for the answer."""
        if self._group is None:
            return lambda: flags
        votes = torch.tensor(flags, dtype=torch.int32)
        work = self._group.allreduce(votes, dist.ReduceOp.MAX)  # dist.all_reduce adds half a millisecond to a step

        def answer() -> tuple[bool, ...]:
            work.wait()
            return tuple(bool(vote) for vote in votes.tolist())

        return answer

    def sum(self, count: torch.Tensor) -> torch.Tensor:
        """Return the sum of a whole number over all processes; in a third of the time of accelerate's `gather`."""
        total = count.to("cpu", copy=True)
        if self._group is not None:
            self._group.allreduce(total, dist.ReduceOp.SUM).wait()
        return total

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each process, by rank."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def barrier(self) -> None:
        """Wait for every process to call this."""
        self.any(False)  # noqa: FBT003

"""Decisions that all processes of a training take together, whatever the devices that they train on."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Agreement:
    """Talks over a process group of its own, on the CPU: no device has to wait. Alone, it agrees with itself."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo") if together else None

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether some process raised it."""
        if self._group is None:
            return flags
        votes = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group)
        return tuple(bool(vote) for vote in votes.tolist())

    def gather(self, value: Any) -> list[Any]:
        """The value of each process, by rank."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def wait(self) -> None:
        """Wait until every process has come here."""
        self.any(False)  # noqa: FBT003

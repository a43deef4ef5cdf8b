"""The size of micro-batches, the number of steps, and intervals."""

from __future__ import annotations

import math

from params import RecipeError
from params.schema import Launch, Training


def total_steps(training: Training, rows: int) -> int:
    """Return the optimizer steps of a training on `rows` sequences; every epoch is cut to whole global batches."""
    return training.max_steps or max(1, math.ceil((training.epochs or 1.0) * (rows // training.global_batch_size)))


def interval_steps(interval: float, total: int) -> int:
    """Return the steps of an interval, which is a share of `total` if it is below 1."""
    return int(interval) if interval >= 1 else max(1, math.ceil(interval * total))


def is_evaluated_on_the_way(step: int, every: float, delay: float) -> bool:
    """Return whether a training evaluates at a step that is not its last; `delay` is its `eval_delay`."""
    return step == 0 or (step % int(every) == 0 and step >= delay)


def micro_batch_and_accumulation(global_batch_size: int, launch: Launch) -> tuple[int, int]:
    """Return micro-batch size and accumulation steps; times the number of processes, their product is the global batch.

    The micro-batch is the largest divisor up to `launch.micro_batch_size`. RecipeError if there is none.
    """
    if global_batch_size % launch.num_processes:
        divisors = [n for n in range(1, global_batch_size + 1) if global_batch_size % n == 0]
        raise RecipeError(
            "launch.num_processes",
            f"{launch.num_processes} processes cannot share training.global_batch_size {global_batch_size} evenly",
            f"use one of {divisors} processes, or another global batch",
        )
    share = global_batch_size // launch.num_processes
    micro_batch = max(n for n in range(1, min(share, launch.micro_batch_size) + 1) if share % n == 0)
    return micro_batch, share // micro_batch

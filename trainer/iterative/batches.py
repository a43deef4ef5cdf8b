"""The micro-batches of one call of `step`, the same number on every process, and what they accumulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainer.iterative.collator import Features, RowCollator
from trainer.loop.collectives import Collectives

Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class StepBatches:
    """What a call of `step` trains on."""

    batches: list[Batch]
    """This process's micro-batches. If another process has more, copies of the first one follow, with weight 0."""
    own: int
    """How many of them are not copies."""
    predicted: list[int]
    """Predicted tokens of each micro-batch, over all processes."""
    rows: int
    """Rows of the call, over all processes."""


@dataclass
class Accumulated:
    """What has accumulated for the next update, apart from the gradients themselves."""

    batches: int = 0
    """Micro-batches."""
    tokens: int = 0
    """Their predicted tokens, over all processes."""
    loss: Any = 0.0
    """Their loss, summed over these tokens."""
    denominator: int = 0
    """The number of tokens that their gradients were divided by; equal on all processes."""


def make_batches(
    rows: list[Features], size: int, *, data_collator: Callable[[list[Any]], Batch], row_collator: RowCollator
) -> list[Batch]:
    """Collate rows into micro-batches of `size` rows, each with labels; ValueError if one has no token to predict."""
    batches: list[Batch] = []
    for start in range(0, len(rows), size):
        batch = dict(data_collator(rows[start : start + size]))
        if "labels" not in batch:
            batch["labels"] = row_collator.causal_labels(batch["input_ids"], batch["attention_mask"])
        if row_collator.count_predicted(batch["labels"]) == 0:
            raise ValueError(
                f"step: data_collator left no token to predict in rows {start} to {start + size - 1}; leave them out, "
                "or use a collator that keeps some of their labels"
            )
        batches.append(batch)
    return batches


def make_equal_batch_count(
    collectives: Collectives, process: int, make: Callable[[], tuple[list[Batch], int]], count: Callable[[Any], int]
) -> StepBatches:
    """Make this process's micro-batches, and as many as on the process that has the most.

    `make` returns micro-batches and the number of rows, `count` the predicted tokens of labels. If `make` fails on one
    process, all raise its error.

    Raises:
        ValueError: another process could not make its micro-batches; this one raises what `make` raised.
    """
    batches: list[Batch] = []
    predicted: list[int] = []
    rows, error = 0, None
    try:
        batches, rows = make()
        predicted = [count(batch["labels"]) for batch in batches]
    except Exception as raised:  # noqa: BLE001  the other processes wait for an answer, whatever was raised
        error = raised
    answers = collectives.gather((predicted, rows, error and str(error)))
    if error:
        raise error
    for other, (_, _, message) in enumerate(answers):
        if message:
            raise ValueError(f"on process {other}, {message}")
    most = max(len(counts) for counts, _, _ in answers)
    padded = [counts + [0] * (most - len(counts)) for counts, _, _ in answers]
    return StepBatches(
        batches=batches + batches[:1] * (most - len(batches)),
        own=len(answers[process][0]),
        predicted=[sum(counts) for counts in zip(*padded, strict=True)],
        rows=sum(count for _, count, _ in answers),
    )

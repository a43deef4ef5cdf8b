"""What a model makes of every row of a split: one line of scores a row, whatever batches and windows it was read in.

Logits are reduced on each batch before anything is kept. What stays in memory are the scores: 8 bytes for each figure of a
row, 32 for a classifier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from params import ModelError
from tasks.progress import progress

if TYPE_CHECKING:
    from datasets import Dataset
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from trainer.loop.metrics import Figures
    from trainer.objectives.bases.objective import Objective

_NAMED = 5
"""Rows that an error names."""


@dataclass(frozen=True)
class Scores:
    """The scores of N rows."""

    row_ids: NDArray[np.int64]
    """(N,), ascending."""
    columns: dict[str, NDArray[np.float64]]
    """Each (N,): those of `Objective.score_names` and `example_counts`."""

    def __len__(self) -> int:
        return len(self.row_ids)

    def take(self, places: NDArray[Any]) -> Scores:
        """Those of some rows, by place or mask."""
        return Scores(self.row_ids[places], {name: column[places] for name, column in self.columns.items()})

    def row(self, place: int) -> dict[str, float]:
        """The scores of one row."""
        return {name: float(column[place]) for name, column in self.columns.items()}

    def write(self, path: Path) -> None:
        """Write one line a row, as Parquet."""
        pq.write_table(pa.table({"row_id": self.row_ids, **self.columns}), path)


def score(
    model: PreTrainedModel,
    sequences: Dataset,
    *,
    objective: Objective[Any],
    figures: Figures,
    batch_size: int,
    what: str,
) -> Scores:
    """Score every row of a split.

    Args:
        model: is put into evaluation mode.
        sequences: of the split, in any order.
        objective: measures batches.
        figures: takes in what is measured.
        batch_size: sequences in one forward pass.
        what: is scored, for the log and for errors.

    Raises:
        ModelError: a score is not finite.
    """
    names = (*objective.score_names, *objective.example_counts)
    row_ids: list[NDArray[np.int64]] = []
    measured: list[NDArray[np.float64]] = []  # (B, K) each
    batches = figures.batches(model, sequences, batch_size=batch_size)
    for examples, parts in progress(
        batches, what=f"evaluate: {what} batches", total=math.ceil(len(sequences) / batch_size)
    ):
        figures.update(parts)
        known = [[example.get(name, 0) for name in objective.example_counts] for example in examples]
        row_ids.append(np.array([example["row_id"] for example in examples]))
        measured.append(np.concatenate([parts[0].double().numpy(), np.array(known, float)], axis=1))
    ids, table = np.concatenate(row_ids), np.concatenate(measured)
    order = np.lexsort((*table.T, ids))  # a row's windows in one order, whatever the batches, so that sums are the same
    rows, starts = np.unique(ids[order], return_index=True)
    scores = Scores(rows, dict(zip(names, np.add.reduceat(table[order], starts).T, strict=True)))
    _refuse_non_finite(scores, what)
    return scores


def _refuse_non_finite(scores: Scores, what: str) -> None:
    bad = np.zeros(len(scores), bool)
    for column in scores.columns.values():
        bad |= ~np.isfinite(column)
    if bad.any():
        ids = ", ".join(map(str, scores.row_ids[bad][:_NAMED])) + (", ..." if bad.sum() > _NAMED else "")
        raise ModelError(
            what,
            f"scores of {bad.sum()} of {len(scores)} rows are not finite (row_id {ids})",
            "look at one of them with `python -m tasks trace`; lower training.learning_rate",
        )

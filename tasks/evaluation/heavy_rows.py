"""Which rows decide a metric: those with much of the weight that all rows have in it.

A mean over tokens, bytes or spans counts a row by how many it has. Where one row has a third of all tokens, an interval over other rows must be wide,
whatever the others say: the reader is told which row that is.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tasks.evaluation.report import HeavyRow
from tasks.evaluation.scoring import RowScores
from trainer.objectives.bases.lazy_imports import NDArray

_SHARE: Final = 0.1
"""A row with less of the weight does not decide."""
_TIMES: Final = 5
"""Nor does one with less than so many times the mean weight: of few rows, each has much."""
_MOST: Final = 5
"""So many rows are named."""


def find_heavy_rows(weights: NDArray[np.float64] | None, scores: RowScores) -> list[HeavyRow]:
    """Return the rows that decide, the heaviest first; of rows that belong together, the whole group. `weights` are those of the rows, (N,)."""
    if weights is None or not weights.sum() > 0:
        return []
    groups = np.arange(len(weights)) if scores.groups is None else np.unique(scores.groups, return_inverse=True)[1]
    shares = np.bincount(groups, weights=weights) / weights.sum()
    is_heavy = (shares >= _SHARE) & (shares * len(shares) >= _TIMES)
    found = []
    for group in sorted(np.flatnonzero(is_heavy).tolist(), key=lambda group: -shares[group])[:_MOST]:
        inside = np.flatnonzero(groups == group)
        heaviest = int(scores.row_ids[inside[weights[inside].argmax()]])
        found.append(HeavyRow(row_id=heaviest, rows=len(inside), share=float(shares[group])))
    return found

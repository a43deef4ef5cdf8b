"""Copies: rows of the held-out split that are one row to the model. They are one observation, however often they are there.

Rows that were copied before the split, as where rare labels are upsampled, stay together if a hash of the content decides. A model answers
them alike, so with each as an observation of its own, intervals would be too narrow, and an equal model would pass too often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks.evaluation.scoring import RowGroups, resampling_units
from tasks.progress import reset_idle_timer
from tasks.shards.split_rows import SplitRows
from trainer import objectives
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.lazy_imports import NDArray
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import hash_row_values, label_columns

logger = logging.getLogger(__name__)
_ROWS_BETWEEN_SIGNS_OF_LIFE = 1000


def group_with_copies(rows: SplitRows, objective: Objective[Any]) -> tuple[RowGroups | None, int]:
    """Return the groups of a split's rows by `data.group_by` and by being equal, None if each row is on its own, and the number of copies.

    Rows that the one or the other joins, in any chain, are one group.
    """
    groups = RowGroups.read(rows)
    row_ids, equal = _number_equal_rows(rows, objective)
    copies = len(row_ids) - len(np.unique(equal))
    if not copies:
        return groups, 0
    logger.info("evaluate: %d of %d rows are copies of others: equal rows count as one group", copies, len(row_ids))
    numbers = resampling_units(groups.numbers if groups else None, equal.astype(float))
    assert numbers is not None
    return RowGroups(row_ids, numbers), copies


def _number_equal_rows(rows: SplitRows, objective: Objective[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the `row_id`s of all rows, (N,), and a number for each, (N,), the same for rows that are equal but for their labels."""
    labels = label_columns(objective.columns())
    compared = [name for name in objective.columns() if name not in labels]
    found = np.fromiter(_hash_rows(rows, objective, compared), np.dtype([("row_id", np.int64), ("hash", np.uint64)]))
    return found["row_id"], np.unique(found["hash"], return_inverse=True)[1]


def _hash_rows(rows: SplitRows, objective: Objective[Any], columns: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the `row_id` of each row, and a hash of its content in some columns."""
    for number, row in enumerate(rows.rows([ROW_ID, *objective.columns()])):
        if number % _ROWS_BETWEEN_SIGNS_OF_LIFE == 0:
            reset_idle_timer()
        content = objectives.content_of_row(objective, row)
        yield row[ROW_ID], hash_row_values([content.get(name) for name in columns])

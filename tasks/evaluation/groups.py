"""Rows that belong together (`data.group_by`), such as those of one customer: statistics count them as one observation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tasks.split_rows import SplitRows
from trainer.data.shards import ROW_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class RowGroups:
    """The group of each row of a split."""

    row_ids: NDArray[np.int64]
    """(N,), ascending."""
    numbers: NDArray[np.int64]
    """(N,), equal for rows that belong together."""

    @classmethod
    def read(cls, rows: SplitRows) -> Self | None:
        """Read the groups of a split, which names the columns that make a group; None if each row is on its own."""
        row_ids, numbers, known = list[int](), list[int](), dict[str, int]()
        for row in rows.rows([ROW_ID, *rows.group_by]) if rows.group_by else ():
            key = json.dumps([row[column] for column in rows.group_by], default=str, sort_keys=True)
            numbers.append(known.setdefault(key, len(known)))
            row_ids.append(row[ROW_ID])
        return cls(np.array(row_ids), np.array(numbers)) if len(known) < len(numbers) else None

    def of(self, row_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of some rows of the split, (M,): two models may have scores of different rows."""
        return self.numbers[np.searchsorted(self.row_ids, row_ids)]

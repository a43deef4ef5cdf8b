"""Rows that belong together (`data.group_by`), such as those of one customer: statistics count them as one observation."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tasks.shards.split_rows import SplitRows, group_of
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
    def read(cls, rows: SplitRows, row_ids: Collection[int] | None = None) -> Self | None:
        """Read the groups of all rows of a split, or of some, by the columns that it names; None if each row is on its own."""
        if not rows.group_by:
            return None
        columns = [ROW_ID, *rows.group_by]
        ids, numbers, known = list[int](), list[int](), dict[str | int, int]()
        for row in rows.rows(columns) if row_ids is None else rows.pick(row_ids, columns):
            values = group_of(row, rows.group_by)
            key = row[ROW_ID] if values is None else json.dumps(list(values.values()), default=str, sort_keys=True)
            numbers.append(known.setdefault(key, len(known)))
            ids.append(row[ROW_ID])
        return cls(np.array(ids), np.array(numbers)) if len(known) < len(numbers) else None

    def of(self, row_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of some rows of the split, (M,): two models may have scores of different rows."""
        return self.numbers[np.searchsorted(self.row_ids, row_ids)]

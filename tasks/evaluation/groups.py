"""Rows that belong together: statistics count them as one observation.

They do by `data.group_by`, such as the rows of one customer, or because a metric looks at them together, such as those of a query.
"""

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


def resampling_units(groups: NDArray[np.int64] | None, scored: NDArray[np.float64] | None) -> NDArray[np.int64] | None:
    """Return the numbers of what is resampled as one: rows that are in the same group, or the same `Objective.group_score`."""
    if groups is None or scored is None:
        return groups if scored is None else np.unique(scored, return_inverse=True)[1]
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    own, other = (np.unique(one, return_inverse=True)[1] for one in (groups, scored))
    size = own.max() + other.max() + 2
    links = coo_array((np.ones(len(own)), (own, own.max() + 1 + other)), shape=(size, size))
    _, found = connected_components(links, directed=False)
    numbers: NDArray[np.int64] = found[own].astype(np.int64)
    return numbers

"""Rows that belong together (`data.group_by`), such as those of one customer: statistics count them as one observation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from tasks.split_rows import SplitRows
from trainer.data.shards import ROW_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_groups(rows: SplitRows, row_ids: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the number of each row's group, (N,); None if each row of the split is on its own.

    A group has the same number whichever rows are asked for: two models may have scores of different rows.

    Args:
        rows: a split of the validated rows, which names the columns that make a group.
        row_ids: (N,), ascending, some rows of the split.
    """
    if not rows.group_by:
        return None
    numbers, is_group, groups = dict[str, int](), False, np.zeros(len(row_ids), np.int64)
    for row in rows.rows([ROW_ID, *rows.group_by]):
        key = json.dumps([row[column] for column in rows.group_by], default=str, sort_keys=True)
        is_group |= key in numbers
        number = numbers.setdefault(key, len(numbers))
        position = int(np.searchsorted(row_ids, row[ROW_ID]))
        if position < len(row_ids) and row_ids[position] == row[ROW_ID]:
            groups[position] = number
    return groups if is_group else None

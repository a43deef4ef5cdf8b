"""Rows that belong together (`data.group_by`), such as those of one customer: statistics count them as one observation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from params.artifacts import GROUP_BY

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH_ROWS = 8192


def read_groups(rows: Path, row_ids: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the number of each row's group, (N,); None if each row of the split is on its own.

    A group has the same number whichever rows are asked for: two models may have scores of different rows.

    Args:
        rows: a split of the validated rows; its metadata names the columns that make a group.
        row_ids: (N,), ascending, some rows of the split.
    """
    with pq.ParquetFile(rows) as file:
        text = (file.schema_arrow.metadata or {}).get(GROUP_BY.encode())
        if text is None:
            return None
        columns, numbers, is_group = json.loads(text), dict[str, int](), False
        groups = np.zeros(len(row_ids), np.int64)
        for batch in file.iter_batches(_BATCH_ROWS, columns=["row_id", *columns]):
            for row in batch.to_pylist():
                key = json.dumps([row[column] for column in columns], default=str, sort_keys=True)
                is_group |= key in numbers
                number = numbers.setdefault(key, len(numbers))
                position = int(np.searchsorted(row_ids, row["row_id"]))
                if position < len(row_ids) and row_ids[position] == row["row_id"]:
                    groups[position] = number
    return groups if is_group else None

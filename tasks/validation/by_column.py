"""Check columns as a whole: the columns that an expectation names are in memory, for all rows.

So numbers take 8 bytes a row, and text takes its own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from params.schema import Expectation
from tasks.validation.expectations import ExpectationResult, run_expectations
from tasks.validation.kinds import columns_read
from tasks.validation.raw_rows import SPLIT, Positions, RawRows, frame_of, without

if TYPE_CHECKING:
    import pandas as pd


def check_columns(expectations: Sequence[Expectation], rows: RawRows, skip: Positions) -> list[ExpectationResult]:
    """Check all rows but those at the positions in `skip`; expectations of the same columns share their frame."""
    by_columns: dict[tuple[str, ...], list[int]] = {}
    for number, expectation in enumerate(expectations):
        by_columns.setdefault(tuple(columns_read(expectation, rows.schema)), []).append(number)
    found: dict[int, ExpectationResult] = {}
    for columns, numbers in by_columns.items():
        results = run_expectations([expectations[number] for number in numbers], _frame(rows, columns, skip))
        found.update(zip(numbers, results, strict=True))
    return [found[number] for number in range(len(expectations))]


def whole_frame(rows: RawRows, columns: Sequence[str]) -> pd.DataFrame:
    """Return some columns of all rows as a frame indexed by position."""
    import pandas as pd

    split = None
    if SPLIT in columns:
        lengths = [part.shard.rows for part in rows.parts]
        split = pd.Series([part.split for part in rows.parts], dtype="str").repeat(lengths).reset_index(drop=True)
    return frame_of(rows.table([name for name in columns if name in rows.schema.names]), columns, split)


def _frame(rows: RawRows, columns: Sequence[str], skip: Positions) -> pd.DataFrame:
    """A frame with all columns, of which only some have their values: the others take no memory."""
    import pandas as pd

    read = without(whole_frame(rows, columns), skip)
    nothing = np.broadcast_to(np.zeros(1, np.int8), len(read))
    names = dict.fromkeys([*rows.schema.names, SPLIT])
    values = {name: read[name] if name in columns else pd.Series(nothing, read.index, copy=False) for name in names}
    return pd.DataFrame(values, read.index, copy=False)

"""Slices of a split: the rows with the same value of a column, or with the same name from a function of the recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from params import DataError, RecipeError
from params.importing import bind
from params.schema import SliceBy
from tasks.shards.split_rows import SplitRows
from trainer.data.shards import ROW_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_SLICES = 1000
"""Most slices of one column or function. Columns with more mostly hold free text or numbers."""


def slice_positions(
    rows: SplitRows, slices: Sequence[SliceBy], row_ids: NDArray[np.int64]
) -> Iterator[tuple[str, dict[str, NDArray[np.int64]]]]:
    """Yield the name of each column or function to slice by, with the positions in `row_ids` of each slice's rows.

    The largest slices come first. `row_ids` (N,) ascend; other rows are ignored.

    Raises:
        RecipeError: there is no such column, it has too many values, or the function fails.
    """
    for i, slice_by in enumerate(slices):
        where = f"evaluation.slices.{i}"
        name_slice = _slice_name_function(slice_by, where)
        positions: dict[str, list[int]] = {}
        if slice_by.column is not None and slice_by.column not in rows.schema.names:
            what = f"the rows have no column `{slice_by.column}`"
            raise RecipeError(where, what, f"use one of {', '.join(rows.schema.names)}")
        for row in rows.rows():
            position = int(np.searchsorted(row_ids, row[ROW_ID]))
            if position < len(row_ids) and row_ids[position] == row[ROW_ID]:
                positions.setdefault(name_slice(row), []).append(position)
        if len(positions) > _MAX_SLICES:
            what = f"{slice_by.title} gives {len(positions)} slices, more than the limit of {_MAX_SLICES}"
            raise RecipeError(where, what, "slice by a function that returns fewer names")
        largest_first = sorted(positions.items(), key=lambda item: (-len(item[1]), item[0]))
        yield slice_by.title, {name: np.array(found) for name, found in largest_first}


def _slice_name_function(slice_by: SliceBy, where: str) -> Callable[[Mapping[str, Any]], str]:
    if slice_by.function is None:
        column = str(slice_by.column)
        return lambda row: str(row[column])
    function = bind(slice_by.function, f"{where}.function", 1)

    def name_slice(row: Mapping[str, Any]) -> str:
        try:
            return str(function(row))
        except Exception as error:
            what = f"raised {type(error).__name__} for row_id {row['row_id']}: {error}"
            raise RecipeError(f"{where}.function", what, "fix the function") from error

    return name_slice


def read_texts(rows: SplitRows, row_ids: Sequence[int], text: Callable[[Mapping[str, Any]], str]) -> dict[int, str]:
    """Return the texts of some rows by row_id.

    Raises:
        DataError: a row is missing.
    """
    found = {row[ROW_ID]: text(row) for row in rows.pick(row_ids)}
    if missing := set(row_ids) - found.keys():
        raise DataError(
            str(rows.folder), f"has no row with row_id {min(missing)}", "run the stages from validate on again"
        )
    return found

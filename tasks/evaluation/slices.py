"""Parts of a split: the rows that share a value of a column, or what a function of the recipe says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from params import DataError, RecipeError
from params.importing import bind
from params.schema import Slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH = 8192
_MOST_PARTS = 1000
"""Parts that a division may have: more say nothing to anybody, and are mostly a column of free text or numbers."""


def divisions(
    rows: Path, slices: Sequence[Slice], row_ids: NDArray[np.int64]
) -> Iterator[tuple[str, dict[str, NDArray[np.int64]]]]:
    """Yield each division's name, and the places in `row_ids` of each of its parts, the largest part first.

    Args:
        rows: validated rows of the split, as Parquet.
        slices: from the recipe.
        row_ids: (N,), ascending; other rows are passed over.

    Raises:
        RecipeError: there is no such column, it has too many values, or the function fails.
    """
    for i, division in enumerate(slices):
        where = f"evaluation.slices.{i}"
        name = _name_of(division, where)
        parts: dict[str, list[int]] = {}
        with pq.ParquetFile(rows) as file:
            if division.column is not None and division.column not in file.schema_arrow.names:
                what = f"the rows have no column `{division.column}`"
                raise RecipeError(where, what, f"use one of {', '.join(file.schema_arrow.names)}")
            for batch in file.iter_batches(_BATCH):
                for row in batch.to_pylist():
                    place = int(np.searchsorted(row_ids, row["row_id"]))
                    if place < len(row_ids) and row_ids[place] == row["row_id"]:
                        parts.setdefault(name(row), []).append(place)
        if len(parts) > _MOST_PARTS:
            what = f"{division.title} divides the rows into {len(parts)} parts, at most {_MOST_PARTS} are of use"
            raise RecipeError(where, what, "divide by a function that gives fewer names")
        largest = sorted(parts.items(), key=lambda item: (-len(item[1]), item[0]))
        yield division.title, {part: np.array(places) for part, places in largest}


def _name_of(division: Slice, where: str) -> Callable[[Mapping[str, Any]], str]:
    if division.function is None:
        column = str(division.column)
        return lambda row: str(row[column])
    function = bind(division.function, f"{where}.function", 1)

    def named(row: Mapping[str, Any]) -> str:
        try:
            return str(function(row))
        except Exception as error:
            what = f"raised {type(error).__name__} for row_id {row['row_id']}: {error}"
            raise RecipeError(f"{where}.function", what, "mend the function") from error

    return named


def texts(rows: Path, row_ids: Sequence[int], text: Callable[[Mapping[str, Any]], str]) -> dict[int, str]:
    """The texts of some rows, by row_id.

    Raises:
        DataError: a row is not there.
    """
    wanted, found = set(row_ids), dict[int, str]()
    with pq.ParquetFile(rows) as file:
        for batch in file.iter_batches(_BATCH):
            if wanted.isdisjoint(batch.column("row_id").to_pylist()):
                continue
            found |= {row["row_id"]: text(row) for row in batch.to_pylist() if row["row_id"] in wanted}
    if missing := wanted - found.keys():
        raise DataError(str(rows), f"holds no row {min(missing)}", "run the stages from validate on again")
    return found

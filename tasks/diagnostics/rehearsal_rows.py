"""The rows of a rehearsal: some of all parts of the source, and the longest of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from params import DataError
from params.schema import Data
from tasks.ingestion.batches import to_readable_batch
from tasks.ingestion.source import OpenedSource, open_source

Row = dict[str, Any]
_POOL: Final = 4096
_READ_S: Final = 15.0
"""How long each split is read."""


@dataclass(frozen=True)
class RehearsalRows:
    """Rows of one split of a source."""

    pool: Sequence[Row]
    """Rows at regular distances among all that were read."""
    total: int
    """Rows that were read."""
    is_whole: bool
    """Whether these are all rows."""
    schema: pa.Schema
    """The types of all rows that were read."""

    def usual(self, count: int) -> list[Row]:
        """Return so many rows from all parts of the pool, or all of it."""
        count = min(count, len(self.pool))
        return [self.pool[i * len(self.pool) // count] for i in range(count)]

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Return some of the rows as a table with the types of all that were read."""
        return pa.Table.from_pylist(list(rows), self.schema)

    def longest(self, count: int) -> list[Row]:
        """Return the rows with the longest texts of the pool."""
        return sorted(self.pool, key=_length, reverse=True)[:count]


def read_rows(data: Data, root: Path = Path()) -> dict[str, RehearsalRows]:
    """Read rows of each split that the source has; `root` is that of the project.

    Raises:
        DataError: the source cannot be read, or has no rows.
        RecipeError, TransientError: as for the ingest stage.
    """
    source = open_source(data.source, root)
    return {split: _read(source, split) for split in source.splits}


def _read(source: OpenedSource, split: str) -> RehearsalRows:
    pool: list[tuple[int, Row]] = []
    schema = pa.schema([])
    distance, total, is_whole, end = 1, 0, True, time.monotonic() + _READ_S
    batches = source.batches(split)
    try:
        for batch in batches:
            if time.monotonic() > end:
                is_whole = False
                break
            first = -total % distance
            if first < len(batch.rows):
                read, rows = to_readable_batch(batch)
                schema = pa.unify_schemas([schema, read.rows.schema], promote_options="permissive")
                pool += [(total + i, rows[i]) for i in range(first, len(rows), distance)]
            total += len(batch.rows)
            while len(pool) > _POOL:
                distance *= 2
                pool = [(number, row) for number, row in pool if number % distance == 0]
    finally:
        batches.close()
    if not pool:
        raise DataError("data.source", f"the {split} split has no rows", "give it rows")
    return RehearsalRows([row for _, row in pool], total, is_whole, schema)


def _length(value: Any) -> int:
    """The characters of all texts in a row."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_length, inner))

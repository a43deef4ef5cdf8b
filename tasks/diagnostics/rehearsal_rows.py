"""The rows of a rehearsal: some that are spread over what is read of the source, and the longest of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from params import DataError
from params.schema import Data
from tasks.ingestion.batches import readable
from tasks.ingestion.source import Source, open_source

logger = logging.getLogger(__name__)
_POOL: Final = 4096
_READ_S: Final = 15.0
"""How long each split is read."""


@dataclass(frozen=True)
class RehearsalRows:
    """Rows of one split of a source."""

    usual: Sequence[dict[str, Any]]
    """At regular distances among the rows that were read."""
    longest: Sequence[dict[str, Any]]
    """Those with the longest texts of the pool that `usual` is from, the longest first."""
    total: int
    """Rows that were read."""
    is_whole: bool
    """Whether these are all rows."""
    schema: pa.Schema

    def table(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        """Return some of the rows as a table with the types of all that were read."""
        return pa.Table.from_pylist(list(rows), self.schema)


def read_rows(data: Data, wanted: dict[str, int], longest: int, root: Path = Path()) -> dict[str, RehearsalRows]:
    """Read rows of each split that the source has.

    Args:
        data: says where they are.
        wanted: how many usual rows of each split.
        longest: how many of the longest rows.
        root: of the project.

    Raises:
        DataError: the source cannot be read, or has no rows.
        RecipeError, TransientError: as for the ingest stage.
    """
    source = open_source(data.source, root)
    return {split: _read(source, split, wanted[split], longest) for split in source.splits}


def _read(source: Source, split: str, wanted: int, longest: int) -> RehearsalRows:
    pool: list[tuple[int, dict[str, Any]]] = []
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
                read, rows = readable(batch)
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
    rows = [row for _, row in pool]
    usual = rows[:: max(1, len(rows) // wanted)][:wanted]
    return RehearsalRows(usual, sorted(rows, key=_length, reverse=True)[:longest], total, is_whole, schema)


def _length(value: Any) -> int:
    """The characters of all texts in a row."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_length, inner))

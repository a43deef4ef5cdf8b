"""The few rows of a rehearsal: read from all parts of a source, and dealt out to the splits."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from params import DataError, Recipe
from params.foundation.artifacts import SPLITS
from params.sections.data import Source
from tasks.ingestion.batches import SourceBatch
from tasks.ingestion.row_choice import SOURCE, RowChoice
from tasks.ingestion.sample import JoinedColumns, row_as_read, take_rows
from tasks.ingestion.source import OpenedSource, naming_source, open_source
from tasks.shards.split_rows import table_of_values
from trainer import objectives
from trainer.objectives.bases.rows import ColumnKind, Row

_POOL: Final = 4096
_READ_S: Final = 15.0
"""How long each split is read."""
_HELD_OUT_ROWS: Final = 128


class RehearsalRows(NamedTuple):
    pool: Sequence[Row]
    """Rows at regular distances among all that were read."""
    total: int
    """Rows that were read and are taken, about."""
    is_whole: bool
    """Whether these are all rows."""
    schema: pa.Schema
    """The columns of all rows that were read, as the objective reads them."""

    def usual(self, count: int) -> list[Row]:
        """Return so many rows from all parts of the pool, or all of it."""
        count = min(count, len(self.pool))
        return [self.pool[i * len(self.pool) // count] for i in range(count)]

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Return some of the rows as a table with the types of all that were read."""
        return table_of_values(rows, self.schema)


OpenedSplits = tuple[RowChoice, "OpenedSource", Mapping[str, str]]
"""What is taken of a source, the source, and the split of it that gives the rows of a split."""


def open_sources(sources: Mapping[str, Source]) -> list[OpenedSplits]:
    """Open the sources of a recipe, which are named as in `data`."""
    found = list[OpenedSplits]()
    for key, keys in sources.items():
        with naming_source(f"data.{key}"):
            opened, allowed = open_source(keys), keys.splits or SPLITS
        splits = {split: split for split in opened.splits if split in allowed} or {allowed[0]: "train"}
        found.append((RowChoice.of(f"data.{key}", keys), opened, splits))
    return found


class _Pool:
    """Rows of one split, as an objective reads them, at regular distances among all that come."""

    def __init__(self, kinds: Mapping[str, ColumnKind]) -> None:
        # texts that say numbers stay as they are: the stages of the rehearsal read them
        self._kinds = {column: kind for column, kind in kinds.items() if kind != "number"}
        self._columns = JoinedColumns()
        self._rows: list[tuple[int, Row]] = []
        self._distance = 1
        self.total = 0
        """Rows that came."""

    def add(self, batch: SourceBatch, choice: RowChoice) -> list[bool]:
        """Add some of the next rows, and return which of them are taken; none if the next row to add is not among them."""
        taken, first = list[bool](), -self.total % self._distance
        if first < len(batch.rows):
            found = take_rows(batch, choice)
            self._columns.add(choice.named(found.batch))
            source, written, taken = {SOURCE: choice.name} if choice.name else {}, found.written, found.taken
            for i in range(first, len(found.rows), self._distance):
                if taken[i]:
                    row = row_as_read(found.rows[i] | source, written[i], self._kinds)
                    self._rows.append((self.total + i, row))
        self.total += len(batch.rows)
        while len(self._rows) > _POOL:
            self._distance *= 2
            self._rows = [(number, row) for number, row in self._rows if number % self._distance == 0]
        return taken

    def rows(self) -> list[Row]:
        return [row for _, row in self._rows]

    def schema(self) -> pa.Schema:
        return self._columns.schema(self._kinds)


def read_split(sources: Sequence[OpenedSplits], split: str, kinds: Mapping[str, ColumnKind]) -> RehearsalRows:
    """Read rows of one split of all sources for some seconds, and keep some at regular distances.

    Raises:
        DataError: there are none.
    """
    pool, taken_rows, is_whole, end = _Pool(kinds), 0, True, time.monotonic() + _READ_S
    for choice, source, splits in sources:
        begin, seen = pool.total, list[bool]()
        for batch in source.batches(splits[split]) if split in splits else ():
            if time.monotonic() > end:
                is_whole = False
                break
            seen += pool.add(batch, choice)
        own = round((pool.total - begin) * sum(seen) / max(1, len(seen)))
        taken_rows += min(own, choice.max_rows or own)
    if not pool.rows():
        raise DataError("data.source", f"the {split} split has no rows", "give it rows")
    return RehearsalRows(pool.rows(), max(1, taken_rows), is_whole, pool.schema())


def deal_rows(recipe: Recipe, rows: Sequence[Row], source: Mapping[str, RehearsalRows]) -> dict[str, pa.Table]:
    """Deal training rows out to the splits that have no rows of their own. Training sees each label that was read, however few rows there are."""
    objective = objectives.build_objective(recipe.objective)

    def labels_of(row: Row) -> set[str]:
        try:
            return {*objective.row_labels(row)}
        except (AttributeError, KeyError, TypeError, ValueError):  # validate sets the row aside
            return set()

    known = {label: row for row in (*source["train"].pool, *rows) for label in labels_of(row)}
    kept = {id(row): row for row in known.values()}
    others = [row for row in rows if id(row) not in kept]
    random.Random(0).shuffle(others)  # noqa: S311 - files are often sorted by a label
    count = min(_HELD_OUT_ROWS, len(others) // 4)
    tables = {}
    for split in ("validation", "test"):
        if split in source:
            found = [row for row in source[split].usual(_HELD_OUT_ROWS) if labels_of(row) <= known.keys()]
        else:
            found, others = others[:count], others[count:]
        if found:
            tables[split] = source.get(split, source["train"]).table(found)
    return {"train": source["train"].table([*kept.values(), *others]), **tables}

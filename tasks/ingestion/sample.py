"""Rows of a source in memory, as ingest takes them and as an objective reads them: for `new`, `check` and `rehearse`, and for ingest itself.

A sample and the stages cannot disagree about what a row is: rows are taken by the same code, and types of columns are joined by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from tasks.ingestion.batches import SourceBatch, numbers_as_written, to_readable_batch
from tasks.ingestion.parquet import SourceColumn, columns_of_batch, fields_of_columns, widen_schema_in_place
from tasks.ingestion.row_choice import RowChoice
from tasks.shards.split_rows import NUMBER, as_text, schema_as_read

if TYPE_CHECKING:
    from trainer.objectives.bases.rows import ColumnKind

Row = Mapping[str, Any]
_NUMBER: Final = re.compile(NUMBER)
_READ_AS_TEXT: Final = ("string", "optional", "label")
"""Kinds of columns of which numbers with decimals are read as they are written."""
_TEXT_EVEN_OF_INTEGERS: Final = ("string", "optional")


class TakenRows(NamedTuple):
    """Rows of a batch as a recipe takes them."""

    batch: SourceBatch
    """With the columns of the recipe."""
    rows: list[dict[str, Any]]
    taken: list[bool]
    """Which of the rows `where` takes."""
    names: list[str]
    """The columns as the source calls them."""

    @property
    def written(self) -> list[dict[str, Any]]:
        """For each row, those numbers with decimals that are stored as they were written, as text."""
        return numbers_as_written(self.batch)


def take_rows(batch: SourceBatch, choice: RowChoice | None = None) -> TakenRows:
    """Return the rows of a batch of a source; without a choice, all as they are.

    Raises:
        RecipeError, DataError: a value cannot be read, or the recipe's choice is not possible.
    """
    readable, rows = to_readable_batch(batch)
    names = readable.rows.schema.names
    if choice is None:
        return TakenRows(readable, rows, [True] * len(rows), names)
    return TakenRows(*choice.apply(readable, rows), names)


class JoinedColumns:
    """The columns of some rows of a source, with the types that ingest gives them."""

    def __init__(self) -> None:
        self._columns = dict[str, SourceColumn]()

    def add(self, batch: SourceBatch) -> None:
        """Add the columns of rows that come later; DataError if no type holds the values of both."""
        widen_schema_in_place(self._columns, columns_of_batch(batch, self._columns))

    def schema(self, kinds: Mapping[str, ColumnKind]) -> pa.Schema:
        """Return the columns as an objective with these columns reads them."""
        return schema_as_read(pa.schema(fields_of_columns(self._columns)), kinds)

    def as_stored(self, rows: Iterable[Row]) -> list[Row]:
        """Return rows with texts in columns of several types, which are text where other rows have text."""
        mixed = [name for name, own in self._columns.items() if own.is_mixed and types.is_string(own.type)]
        if not mixed:
            return [*rows]
        return [{**row, **{name: as_text(row.get(name)) for name in mixed}} for row in rows]


def row_as_read(row: Row, written: Row, kinds: Mapping[str, ColumnKind]) -> dict[str, Any]:
    """Return a row as an objective with these columns reads it (`SplitRows.reading`); a text that says no number stays as it is.

    `written` are those of its numbers with decimals that are stored as they were written.
    """
    found = dict(row)
    for name, kind in kinds.items():
        value = row.get(name)
        if kind in _READ_AS_TEXT and name in written:
            found[name] = written[name]
        elif kind in _TEXT_EVEN_OF_INTEGERS and type(value) is int:
            found[name] = str(value)
        elif kind == "number":
            found[name] = _number_said(value)
    return found


def _number_said(value: Any) -> Any:
    """Return the number that a text says, null for a blank one, and else the value."""
    if not isinstance(value, str):
        return value
    if _NUMBER.fullmatch(value.strip()):
        return float(value)
    return value if value.strip() else None

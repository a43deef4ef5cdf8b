"""The raw rows of a run: each split as a table, and all of them as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import DataError
from params.artifacts import SPLITS
from params.loading import suggestion
from tasks.split_rows import SplitRows
from trainer.objectives.bases.objective import ColumnKind

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ORDER = ("test", "validation", "train")
"""Held-out splits first: of equal rows the first one stays, and a training row must not repeat a held-out row."""


@dataclass(frozen=True)
class RawRows:
    """All rows of a run. A row's position is its index in the splits, put together in `ORDER`."""

    splits: Mapping[str, SplitRows]
    """Each split, in source order."""
    table: Any
    """The splits in `ORDER`, one after another, as one Arrow table."""

    @cached_property
    def frame(self) -> pd.DataFrame:
        """`table` as a pandas frame, indexed by position; it has a column `split`, the source's own if there is one.

        Integers beside nulls stay integers: as floats, different keys above 2**53 would become equal.
        """
        frame: pd.DataFrame = self.table.to_pandas(integer_object_nulls=True)
        if "split" not in frame:
            frame["split"] = self.split_names
        return frame

    @cached_property
    def split_names(self) -> list[str]:
        """The split of each position."""
        return [split for split in ORDER for _ in range(len(self.splits[split]))]

    @cached_property
    def ids(self) -> list[int]:
        """The row_id of each position."""
        found: list[int] = self.table["row_id"].to_pylist()
        return found

    def span(self, split: str) -> range:
        """Return the positions of a split."""
        start = sum(len(self.splits[s]) for s in ORDER[: ORDER.index(split)])
        return range(start, start + len(self.splits[split]))

    def address(self, position: int) -> str:
        """Return a row's id and split, for messages."""
        return f"row {self.ids[position]} of {self.split_names[position]}"

    def each(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield all rows with their positions; only a batch is in memory as Python objects."""
        position = 0
        for batch in self.table.to_batches(max_chunksize=1000):
            for row in batch.to_pylist():
                yield position, row
                position += 1

    def values(self, position: int, columns: Iterable[str]) -> dict[str, Any]:
        """Return the values of one row in some columns."""
        return {c: self.table[c][position].as_py() for c in columns if c in self.table.column_names}


def read_raw_rows(raw: Path, kinds: Mapping[str, ColumnKind], needed: Mapping[str, str]) -> RawRows:
    """Read the rows of every split in `raw`.

    `kinds` says what the objective's columns hold, `needed` what needs each column. An error names all wrong columns.

    Raises:
        DataError: a file is missing or damaged, or columns are missing or have the wrong type; all such columns are named.
    """
    import pyarrow as pa

    splits = {split: SplitRows(raw / split) for split in SPLITS}
    schema = splits["train"].schema  # that of all splits
    _require_columns(raw, schema.names, needed)
    _require_types(raw, schema, kinds)
    return RawRows(splits, pa.concat_tables([splits[s].table() for s in ORDER]))


def _require_columns(raw: Path, columns: Sequence[str], needed: Mapping[str, str]) -> None:
    missing = {column: user for column, user in needed.items() if column not in columns}
    listing = ", ".join(columns)
    what = [
        f"there is no column `{column}`, which {user} needs; columns: {listing}" for column, user in missing.items()
    ]
    fixes = [suggestion(column, list(columns), "columns") for column in missing]
    if what:
        raise DataError(str(raw), "\n".join(what), "; ".join(dict.fromkeys(fixes)))


def _require_types(raw: Path, schema: pa.Schema, kinds: Mapping[str, ColumnKind]) -> None:
    from pyarrow import types

    def is_text(kind: Any) -> bool:
        plain = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain))

    wrong = []
    for column, required in kinds.items():
        kind = schema.field(column).type
        fits = is_text(kind) or types.is_null(kind)
        if required == "label":
            fits = fits or types.is_integer(kind) or types.is_boolean(kind)
        elif required == "list":
            fits = types.is_list(kind) or types.is_large_list(kind) or types.is_null(kind)
        if not fits:
            words = {"string": "text", "label": "text or integers", "list": "lists"}[required]
            wrong.append(f"column `{column}` must hold {words}, but holds {kind}")
    if wrong:
        raise DataError(str(raw), "\n".join(wrong), "choose another column in the recipe's objective, or fix the data")

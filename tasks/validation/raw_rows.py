"""The raw rows of a run: each split as a table, and all of them as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import DataError
from params.artifacts import SPLITS
from params.loading import suggestion
from trainer.objectives.bases.objective import ColumnKind

if TYPE_CHECKING:
    import pandas as pd

ORDER = ("test", "validation", "train")
"""Held-out splits first: of equal rows the first one stays, and a training row must not repeat a held-out row."""


@dataclass(frozen=True)
class RawRows:
    """All rows of a run. A row's position is its index in the splits, put together in `ORDER`."""

    splits: Mapping[str, Any]
    """Arrow table of each split, in source order."""
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
        return [split for split in ORDER for _ in range(self.splits[split].num_rows)]

    @cached_property
    def ids(self) -> list[int]:
        """The row_id of each position."""
        found: list[int] = self.table["row_id"].to_pylist()
        return found

    def span(self, split: str) -> range:
        """Return the positions of a split."""
        start = sum(self.splits[s].num_rows for s in ORDER[: ORDER.index(split)])
        return range(start, start + self.splits[split].num_rows)

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
    """Read `<split>.parquet` of every split in `raw`.

    `kinds` says what the objective's columns hold, `needed` what needs each column. An error names all wrong columns.

    Raises:
        DataError: a file is missing or damaged, or columns are missing or have the wrong type; all such columns are named.
    """
    import pyarrow as pa

    splits = {split: _read(raw / f"{split}.parquet") for split in SPLITS}
    _require_columns(raw, splits, {"row_id": "every stage", **needed})
    _require_types(raw, splits, kinds)
    try:
        table = pa.concat_tables([splits[s] for s in ORDER], promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        differing = [
            f"`{c}` is " + ", ".join(f"{t.schema.field(c).type} in {s}" for s, t in splits.items())
            for c in splits["train"].column_names
            if all(c in t.column_names for t in splits.values())
            and len({t.schema.field(c).type for t in splits.values()}) > 1
        ]
        what = "the splits have different column types: " + ("; ".join(differing) or str(error))
        raise DataError(str(raw), what, "store each column with one type in every split") from None
    return RawRows(splits, table)


def _read(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise DataError(str(path), "does not exist", "run the ingest stage first") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(str(path), f"cannot be read as Parquet: {error}", "run the ingest stage again") from None


def _require_columns(raw: Path, splits: Mapping[str, Any], needed: Mapping[str, str]) -> None:
    what, fixes = [], []
    for column, user in needed.items():
        without = [s for s, table in splits.items() if column not in table.column_names]
        if not without:
            continue
        columns = list(splits[without[0]].column_names)
        what.append(f"{', '.join(without)}: no column `{column}`, which {user} needs; columns: {', '.join(columns)}")
        fixes.append(suggestion(column, columns, "columns"))
    if what:
        raise DataError(str(raw), "\n".join(what), "; ".join(dict.fromkeys(fixes)))


def _require_types(raw: Path, splits: Mapping[str, Any], kinds: Mapping[str, ColumnKind]) -> None:
    from pyarrow import types

    def is_text(kind: Any) -> bool:
        plain = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain))

    wrong = []
    for column, required in kinds.items():
        for split, table in splits.items():
            kind = table.schema.field(column).type
            fits = is_text(kind) or types.is_null(kind)
            if required == "label":
                fits = fits or types.is_integer(kind) or types.is_boolean(kind)
            elif required == "list":
                fits = types.is_list(kind) or types.is_large_list(kind) or types.is_null(kind)
            if not fits:
                words = {"string": "text", "label": "text or integers", "list": "lists"}[required]
                wrong.append(f"column `{column}` of {split} must hold {words}, but holds {kind}")
    if wrong:
        raise DataError(str(raw), "\n".join(wrong), "choose another column in the recipe's objective, or fix the data")

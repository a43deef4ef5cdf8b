"""The raw rows as validation sees them: each split as it came, and all of them as one table."""

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
"""Held-out splits first: of equal rows the first one stays, and what repeats a held-out row must leave training."""


@dataclass(frozen=True)
class Rows:
    """All rows of a run. A row's position counts through the splits in `ORDER`."""

    splits: Mapping[str, Any]
    """Arrow table of each split, in source order."""
    table: Any
    """The splits in `ORDER`, one after another, as one Arrow table."""

    @cached_property
    def frame(self) -> pd.DataFrame:
        """`table` for pandas, indexed by position, with the column `split` unless the source has one of that name.

        Integers stay integers beside nulls: as floats, keys above 2**53 would run into one another.
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
        """The positions of `split`."""
        start = sum(self.splits[s].num_rows for s in ORDER[: ORDER.index(split)])
        return range(start, start + self.splits[split].num_rows)

    def address(self, position: int) -> str:
        """A row as a reader finds it again: its id and its split."""
        return f"row {self.ids[position]} of {self.split_names[position]}"

    def each(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """All rows with their positions; a few at a time are Python objects."""
        position = 0
        for batch in self.table.to_batches(max_chunksize=1000):
            for row in batch.to_pylist():
                yield position, row
                position += 1

    def values(self, position: int, columns: Iterable[str]) -> dict[str, Any]:
        """Some values of one row."""
        return {c: self.table[c][position].as_py() for c in columns if c in self.table.column_names}


def read_rows(raw: Path, kinds: Mapping[str, ColumnKind], named: Mapping[str, str]) -> Rows:
    """Read `<split>.parquet` of every split in `raw`.

    Args:
        raw: the folder that ingest wrote.
        kinds: the columns that the objective demands, and what they hold.
        named: the columns that anyone needs, and who needs them.

    Raises:
        DataError: a file is missing or torn, or columns are missing or of the wrong type; all of these columns at once.
    """
    import pyarrow as pa

    splits = {split: _read(raw / f"{split}.parquet") for split in SPLITS}
    _require_columns(raw, splits, {"row_id": "every stage", **named})
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
        what = "the splits do not fit together: " + ("; ".join(differing) or str(error))
        raise DataError(str(raw), what, "give a column the same type in every split") from None
    return Rows(splits, table)


def _read(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise DataError(str(path), "there is no such file", "run the ingest stage first") from None
    except pa.ArrowInvalid as error:
        raise DataError(str(path), f"cannot be read as Parquet: {error}", "run the ingest stage again") from None


def _require_columns(raw: Path, splits: Mapping[str, Any], needed: Mapping[str, str]) -> None:
    what, fixes = [], []
    for column, who in needed.items():
        lacking = [s for s, table in splits.items() if column not in table.column_names]
        if not lacking:
            continue
        there = list(splits[lacking[0]].column_names)
        what.append(f"no column `{column}` in {', '.join(lacking)}, which {who} needs; columns: {', '.join(there)}")
        fixes.append(suggestion(column, there, "columns"))
    if what:
        raise DataError(str(raw), "\n".join(what), "; ".join(dict.fromkeys(fixes)))


def _require_types(raw: Path, splits: Mapping[str, Any], kinds: Mapping[str, ColumnKind]) -> None:
    from pyarrow import types

    def is_text(kind: Any) -> bool:
        plain = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain))

    wrong = []
    for column, wanted in kinds.items():
        for split, table in splits.items():
            kind = table.schema.field(column).type
            fits = is_text(kind) or types.is_null(kind)
            if wanted == "label":
                fits = fits or types.is_integer(kind) or types.is_boolean(kind)
            elif wanted == "list":
                fits = types.is_list(kind) or types.is_large_list(kind) or types.is_null(kind)
            if not fits:
                words = {"string": "text", "label": "text or integers", "list": "lists"}[wanted]
                wrong.append(f"column `{column}` of {split} must hold {words}, and holds {kind}")
    if wrong:
        raise DataError(str(raw), "\n".join(wrong), "name another column in the recipe's objective, or mend the data")

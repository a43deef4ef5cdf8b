"""The raw rows of a run, read one shard at a time or one column at a time."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from params import DataError
from params.foundation.artifacts import SPLITS, translate_disk_errors
from params.problems import suggestion
from tasks.shards.kept_work import ShardTask, ShardWorkers, hash_settings
from tasks.shards.split_rows import JSON, SEEN, SplitRows, type_name, values_of_column, values_of_rows
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import ColumnKind

if TYPE_CHECKING:
    import pandas as pd

ORDER = ("test", "validation", "train")
"""Held-out splits first: of equal rows the first one stays, and a training row must not repeat a held-out row."""
SPLIT = "split"
"""Column of the frames that holds the split of a row, unless the source has a column of that name."""
Positions = NDArray[np.int64]
"""Positions of rows, ascending."""
NOTHING: Positions = np.array([], np.int64)
ResultT = TypeVar("ResultT")


def positions_in_range(positions: Positions, start: int, stop: int) -> Positions:
    """Return those of the positions that are at least `start` and less than `stop`."""
    first, end = np.searchsorted(positions, [start, stop])
    return positions[first:end]


def union_of_positions(several: Sequence[Positions]) -> Positions:
    """Return all positions that are in one of several."""
    return np.unique(np.concatenate([NOTHING, *several]))


@dataclass(frozen=True)
class ShardWithPositions:
    split: str
    rows: SplitRows
    start: int

    @property
    def stop(self) -> int:
        """Position after the last row."""
        return self.start + len(self.rows)

    def with_said(self) -> Self:
        """Return the rows with the texts that say numbers, as they are."""
        return replace(self, rows=self.rows.with_said())

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows, with all columns or with `row_id` and those of `columns` that the source has."""
        known = self.rows.schema.names
        return self.rows.table(
            known if columns is None else [name for name in dict.fromkeys([ROW_ID, *columns]) if name in known]
        )


@dataclass(frozen=True, eq=False)
class RawShardWork:
    """Work on one shard. Its positions begin at 0, so what comes of it is the same when rows come before the shard."""

    part: ShardWithPositions
    columns: Sequence[str]
    """The columns that the work reads; the others may change."""
    skip: Positions
    """Positions of the rows that do not count."""
    path: Path | None

    def key(self, settings: str) -> str:
        """Return all that the result depends on; `settings` is a hash of all else."""
        schema = self.part.rows.schema
        return hash_settings(
            shard=self.part.rows.shard.sha256,
            columns=[(name, str(schema.field(name).type)) for name in self.columns if name in schema.names],
            split=self.part.split if SPLIT in self.columns else None,
            first_row_id=self.part.rows.shard.first_row_id if ROW_ID in self.columns else None,
            skip=hashlib.sha256(self.skip.tobytes()).hexdigest(),
            settings=settings,
        )

    def frame(self, as_objects: frozenset[str] = frozenset()) -> pd.DataFrame:
        """Return the rows that count as a frame indexed by position.

        A column of integers or booleans holds Python objects if `as_objects` names it, so that the shards of a column agree.
        """
        frame = table_to_frame(self.part.table(self.columns), self.columns, self.part.split)
        frame = frame.astype(dict.fromkeys([name for name in self.columns if name in as_objects], object))
        return drop_rows(frame, self.skip)

    def each(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows that count with their positions; only a batch is in memory as Python objects."""
        skipped = set(self.skip.tolist())
        return (each for each in enumerate(self.part.rows.rows(self.columns)) if each[0] not in skipped)


def table_to_frame(table: pa.Table, columns: Sequence[str], split: Any) -> pd.DataFrame:
    """Return some columns of a table as a frame; `split` is the column `split` if the table has none.

    Integers beside nulls stay integers: as floats, different keys above 2**53 would become equal.
    """
    import pandas as pd

    frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True)
    for name in (field.name for field in table.schema if field.type.equals(JSON)):
        frame[name] = pd.Series(values_of_column(table[name]), frame.index, dtype=object)
    if SPLIT in columns and SPLIT not in frame:
        frame[SPLIT] = split
    return frame[list(columns)]


def drop_rows(frame: pd.DataFrame, positions: Positions) -> pd.DataFrame:
    """Return a frame that is indexed by position without the rows at some positions."""
    return frame.loc[~np.isin(frame.index.to_numpy(), positions)] if len(positions) else frame


@dataclass(frozen=True)
class RawRows:
    """All rows of a run. A row's position is its index in the splits, put together in `ORDER`."""

    splits: Mapping[str, SplitRows]
    """Each split, in source order."""
    parts: tuple[ShardWithPositions, ...]
    """The shards of all splits in `ORDER`."""
    workers: ShardWorkers
    scratch: Path
    """Where the folder for what does not fit into memory may be."""

    def __len__(self) -> int:
        return self.parts[-1].stop if self.parts else 0

    @property
    def schema(self) -> pa.Schema:
        return self.splits["train"].schema

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield an empty folder for what does not fit into memory; it is there inside the block."""
        shutil.rmtree(self.scratch, ignore_errors=True)  # a killed stage leaves it
        with translate_disk_errors(self.scratch):
            self.scratch.mkdir(parents=True)
            try:
                yield self.scratch
            finally:
                shutil.rmtree(self.scratch)

    def run(
        self,
        function: Callable[[RawShardWork], ResultT],
        parts: Sequence[ShardWithPositions],
        *,
        what: str,
        columns: Sequence[str],
        skip: Positions = NOTHING,
        paths: Sequence[Path] | None = None,
        **settings: Any,
    ) -> Iterator[ResultT]:
        """Yield `function(work)` of each shard; that of an earlier run if nothing has changed that it depends on.

        The work reads `columns`, without the rows at the positions in `skip`, and writes the file of the shard in `paths`, if there are any.
        `settings` are all else that the result depends on, as JSON.
        """
        key, works = hash_settings(work=what, **settings), list[ShardTask[RawShardWork]]()
        files: Sequence[Path | None] = paths or [None] * len(parts)
        for part, path in zip(parts, files, strict=True):
            own = positions_in_range(skip, part.start, part.stop) - part.start
            work = RawShardWork(replace(part, start=0), columns, own, path)
            works.append(ShardTask(work, work.key(key), [path] if path else []))
        return self.workers.run(function, works, what=f"shards ({what})")

    def span(self, split: str) -> range:
        return self._spans[split]

    @cached_property
    def _spans(self) -> dict[str, range]:
        ends = [0, *accumulate(len(self.splits[split]) for split in ORDER)]  # asks each shard
        return {split: range(*span) for split, span in zip(ORDER, pairwise(ends), strict=True)}

    def remaining(self, aside: Positions) -> dict[str, int]:
        """Return the number of rows of each split that are not at the positions in `aside`."""
        spans = {split: self.span(split) for split in SPLITS}
        return {
            split: len(span) - len(positions_in_range(aside, span.start, span.stop)) for split, span in spans.items()
        }

    def parts_of(self, split: str) -> list[ShardWithPositions]:
        return [part for part in self.parts if part.split == split]

    def split_of(self, position: int) -> str:
        return next(split for split in ORDER if position in self.span(split))

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns of all rows; they are then in memory."""
        empty = pa.schema([self.schema.field(name) for name in dict.fromkeys([ROW_ID, *columns])]).empty_table()
        return pa.concat_tables([empty, *(part.table(columns) for part in self.parts)])

    def row_ids(self, positions: Positions) -> Positions:
        found = [NOTHING]
        for part in self.parts:
            chosen = positions_in_range(positions, part.start, part.stop)
            if len(chosen):
                found.append(part.table([])[ROW_ID].to_numpy()[chosen - part.start])
        return np.concatenate(found)

    def pick(
        self, positions: Sequence[int], columns: Sequence[str] | None = None, *, said: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Return a few rows by position, with all columns or with `row_id` and those of `columns` that the rows have.

        `said`: with the texts that say numbers.
        """
        found, wanted = dict[int, dict[str, Any]](), np.unique(np.array(positions, np.int64))
        for part in self.parts:
            if len(own := positions_in_range(wanted, part.start, part.stop)):
                rows = values_of_rows((part.with_said() if said else part).table(columns).take(own - part.start))
                found.update(zip(own.tolist(), rows, strict=True))
        return found

    def as_objects(self, columns: Sequence[str]) -> frozenset[str]:
        """Return those of the columns that hold integers or booleans, and nulls beside them."""
        fields = [self.schema.field(name) for name in columns if name in self.schema.names]
        whole_numbers = [f.name for f in fields if types.is_integer(f.type) or types.is_boolean(f.type)]
        found = set[str]()
        for part in self.parts if whole_numbers else ():
            found |= part.rows.with_nulls(whole_numbers)
        return frozenset(found)


def open_raw_rows(
    raw: Path, kinds: Mapping[str, ColumnKind], needed: Mapping[str, str], workers: ShardWorkers, scratch: Path
) -> RawRows:
    """Return the rows of every split in `raw`; they stay on disk.

    `kinds` says what the objective's columns hold, `needed` what needs each column. An error names all wrong columns.

    Raises:
        DataError: a file is missing or damaged, or columns are missing or have the wrong type; all such columns are named.
    """
    splits = {split: SplitRows(raw / split).reading(kinds) for split in SPLITS}
    require_columns(str(raw), splits["train"].schema, kinds, needed)  # that of all splits
    parts, start = list[ShardWithPositions](), 0
    for split in ORDER:
        for rows in splits[split].shards:
            parts.append(ShardWithPositions(split, rows, start))
            start += len(rows)
    return RawRows(splits, tuple(parts), workers, scratch)


def require_columns(where: str, schema: pa.Schema, kinds: Mapping[str, ColumnKind], needed: Mapping[str, str]) -> None:
    """Refuse rows without a column that something in `needed` needs, or with a column that holds what the objective cannot read."""
    columns = schema.names
    if missing := [column for column in needed if column not in columns]:
        listing, fixes = ", ".join(columns), (suggestion(column, list(columns), "columns") for column in missing)
        what = (f"there is no column `{name}`, which {needed[name]} needs; columns: {listing}" for name in missing)
        raise DataError(where, "\n".join(what), "; ".join(dict.fromkeys(fixes)))
    _require_types(where, schema, kinds)


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _require_types(where: str, schema: pa.Schema, kinds: Mapping[str, ColumnKind]) -> None:
    def is_text(kind: Any) -> bool:  # ingest writes no dictionaries and no views
        return bool(types.is_string(kind) or types.is_large_string(kind))

    def is_label(kind: Any) -> bool:
        return is_text(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)

    def is_list(kind: Any) -> bool:
        return bool(types.is_list(kind) or types.is_large_list(kind))

    def holds(field: pa.Field) -> str:
        return (field.metadata or {}).get(SEEN, b"").decode() or type_name(field.type)

    fitting: dict[ColumnKind, tuple[str, Callable[[Any], bool]]] = {
        "string": ("text", is_text),
        "optional": ("text", is_text),
        "any": ("anything", lambda _: True),
        "label": ("text or integers", is_label),
        "labels": (
            "lists of text or integers, or records",
            lambda kind: types.is_struct(kind) or kind.equals(JSON) or (is_list(kind) and is_label(kind.value_type)),
        ),
        "number": ("numbers", _is_number),
        "numbers": (
            "lists of numbers",
            lambda kind: kind.equals(JSON) or (is_list(kind) and _is_number(kind.value_type)),
        ),
        "records": ("lists", lambda kind: is_list(kind) or kind.equals(JSON)),
        "record": ("records", lambda kind: types.is_struct(kind) or is_list(kind) or kind.equals(JSON)),
    }
    wrong = []
    for column, required in kinds.items():
        (words, fits), field = fitting[required], schema.field(column)
        if not (fits(field.type) or types.is_null(field.type)):
            wrong.append(f"column `{column}` must hold {words}, but holds {holds(field)}")
    if wrong:
        raise DataError(where, "\n".join(wrong), "choose another column in the recipe's objective, or fix the data")

"""Where rows go that only all rows together decide: the newest are held out, `window` and `max_rows` leave some out.

The parts of a source are written first. Then the rows of a part move, or are left out; a part all of whose rows are on one side of each
limit keeps its shard as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from params import DataError
from params.foundation.artifacts import SPLITS
from params.sections.data import Data, span_of_time
from tasks.ingestion.parquet import WrittenPart, write_shard
from tasks.shards.times import NO_TIME, microseconds, read_times, time_of_value
from trainer.data.shards import ROW, Shard

Destinations = NDArray[np.object_]
"""The split that each row goes to, or why it is left out, (N,)."""
TOO_OLD: Final = "older than data.window or data.since"
NOT_ITS_SPLIT: Final = "of a split that the source may not feed"
OVER_MAX: Final = "more than max_rows"


@dataclass
class PlacedPart:
    """A part of a source, and where its rows are now."""

    written: WrittenPart
    allowed: Sequence[str]
    """The splits that the source may feed."""
    shards: dict[str, Shard] = field(default_factory=dict)
    """The shard of each split."""
    left_out: Counter[str] = field(default_factory=Counter)
    """The rows that are left out, by the reason."""

    def move(self, folder: Path, destinations: Callable[[str, pa.Table], Destinations]) -> None:
        """Move the rows to the splits that `destinations` gives for the rows of one."""
        self.shards, left_out = move_rows(folder, self.shards, destinations)
        self.left_out.update(left_out)


def move_rows(
    folder: Path, shards: Mapping[str, Shard], destinations: Callable[[str, pa.Table], Destinations]
) -> tuple[dict[str, Shard], Counter[str]]:
    """Move rows of one part of a source between its shards, and return these and how many rows go to no split, by the reason."""
    tables, found, left_out = dict[str, dict[str, pa.Table]](), dict[str, Shard](), Counter[str]()
    for split, shard in shards.items():
        table = pq.read_table(folder / split / shard.name)
        places = destinations(split, table)
        for name in dict.fromkeys(places.tolist()):
            tables.setdefault(name, {})[split] = table.filter(pa.array(places == name))
    for split, shard in shards.items():
        if [*tables.get(split, ())] == [split] and len(tables[split][split]) == shard.rows:
            found[split] = shard
            del tables[split]
        else:
            (folder / split / shard.name).unlink()  # another name of the file may be kept for the next run
    for name, own in tables.items():
        rows = pa.concat_tables(own.values())
        if name not in SPLITS:
            left_out[name] += len(rows)
            continue
        first = next(iter(shards.values()))
        written = write_shard(rows.sort_by(ROW), folder / name / first.name)
        found[name] = first.model_copy(update={"rows": written.rows, "sha256": written.sha256})
    return found, left_out


@dataclass(frozen=True)
class TimeLimits:
    """Which times are held out, and which are too old, in microseconds before the newest row."""

    column: str
    by_time: bool
    test_us: int
    validation_us: int
    window_us: int | None
    since_us: int

    @classmethod
    def of(cls, data: Data) -> Self | None:
        """Return what a recipe says; None if its rows have no times."""
        if data.time_column is None:
            return None
        by_time, split = data.split.by == "time", data.split
        test, validation = (
            microseconds(span_of_time(str(span))) if by_time else 0 for span in (split.test, split.validation)
        )
        window = microseconds(span_of_time(data.window)) if data.window else None
        since = time_of_value(data.since) if data.since else NO_TIME
        return cls(data.time_column, by_time, test, test + validation, window, since)

    def destinations(self, times: NDArray[np.int64], split: str, newest: int, allowed: Sequence[str]) -> Destinations:
        """Return where rows of a split go. Those without a time, or after the newest one, go to a split whose check sets them aside."""
        found: Any = np.full(len(times), "train" if self.by_time else split, object)
        if self.by_time:
            found[times > newest - self.validation_us] = "validation"
            found[times > newest - self.test_us] = "test"
            found[~np.isin(found, allowed)] = NOT_ITS_SPLIT
        found[(times < self.since_us) | (times <= newest - self.window_us if self.window_us else False)] = TOO_OLD
        found[(times == NO_TIME) | (times > newest)] = allowed[0]
        return found  # type: ignore[no-any-return]


def place_by_time(folder: Path, parts: Sequence[PlacedPart], limits: TimeLimits, latest_us: int) -> tuple[int, int]:
    """Hold out the newest rows and leave out those that are too old.

    Times after `latest_us` are no times of rows.

    Returns:
        the time of the newest row, and that of the newest row that is learned from.

    Raises:
        DataError: no row has a time.
    """
    newest = max((_newest_time(folder, part, limits.column, latest_us) for part in parts), default=NO_TIME)
    if newest == NO_TIME:
        what = f"no row has a time in `{limits.column}` that can be read"
        raise DataError.at(
            "data.time_column", what, "name a column of times such as 2026-01-31T12:00:00Z, or of Unix seconds"
        )
    learned = NO_TIME
    for part in parts:

        def place(split: str, table: pa.Table, part: PlacedPart = part) -> Destinations:
            nonlocal learned
            times = _times_of(table, limits.column)
            found = limits.destinations(times, split, newest, part.allowed)
            learned = max(
                learned, int(times[np.isin(found, ("train", "validation")) & (times <= newest)].max(initial=NO_TIME))
            )
            return found

        ends = np.array([part.written.earliest_us, part.written.latest_us])
        if not part.written.untimed and ends[1] <= newest:  # both ends on one side of all limits: so are all between
            alike = {split: limits.destinations(ends, split, newest, part.allowed) for split in part.shards}
            if all(len(set(own.tolist())) == 1 for own in alike.values()):
                if any(own[0] in ("train", "validation") for own in alike.values()):
                    learned = max(learned, int(ends[1]))
                for split, own in alike.items():
                    if own[0] != split:
                        _move_whole(folder, part, split, own[0])
                continue
        part.move(folder, place)
    return newest, learned


def _times_of(table: pa.Table, column: str) -> NDArray[np.int64]:
    return read_times(table[column]) if column in table.column_names else np.full(len(table), NO_TIME)


def _newest_time(folder: Path, part: PlacedPart, column: str, latest_us: int) -> int:
    """Return the newest time of a part's rows up to `latest_us`; its shards are read only if there are later ones."""
    if part.written.latest_us <= latest_us:
        return part.written.latest_us
    tables = [pq.read_table(folder / split / one.name, columns=[column]) for split, one in part.shards.items()]
    times = np.concatenate([_times_of(table, column) for table in tables])
    return int(times[times <= latest_us].max(initial=NO_TIME))


def _move_whole(folder: Path, part: PlacedPart, split: str, to: str) -> None:
    shard = part.shards.pop(split)
    path = folder / split / shard.name
    if to in SPLITS:
        (folder / to).mkdir(exist_ok=True)
        path.rename(folder / to / shard.name)
        part.shards[to] = shard
    else:
        path.unlink()
        part.left_out[to] += shard.rows


def keep_smallest_hashes(folder: Path, parts: Sequence[PlacedPart], max_rows: int) -> None:
    """Leave out all rows of a source but the `max_rows` with the smallest hashes; of equal hashes, the first ones stay."""
    places, keys = list[NDArray[np.int64]](), list[NDArray[np.uint64]]()
    for part in parts:
        shards = [pq.read_table(folder / split / one.name, columns=[ROW])[ROW] for split, one in part.shards.items()]
        places.append(np.sort(np.concatenate([np.zeros(0, np.int64), *(own.to_numpy() for own in shards)])))
        keys.append(part.written.keys[places[-1]])
    order = np.argsort(np.concatenate(keys), kind="stable")
    is_kept = np.zeros(len(order), np.bool_)
    is_kept[order[:max_rows]] = True
    ends = np.cumsum([len(own) for own in keys])[:-1]
    for part, rows, own in zip(parts, places, np.split(is_kept, ends), strict=True):
        if own.all():
            continue

        def place(split: str, table: pa.Table, chosen: NDArray[np.int64] = rows[own]) -> Destinations:
            return np.where(np.isin(table[ROW].to_numpy(), chosen), split, OVER_MAX).astype(object)

        part.move(folder, place)

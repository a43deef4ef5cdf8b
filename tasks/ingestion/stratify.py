"""`data.split.stratify`: each value of a column, such as a label, has at least one training row.

A hash gives each row a position, and those at the first positions are held out. If these are all rows of a label, the last of them is
moved to train. So a row keeps its split when others are added, unless it is such a last one, and one behind it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from params import RecipeError
from tasks.ingestion.parquet import write_shard
from tasks.shards.split_rows import SplitRows, as_text
from trainer.data.shards import ROW, ROW_ID, Shard


def give_each_value_a_training_row(
    folder: Path,
    shards: Mapping[str, list[Shard]],
    column: str,
    held_out: Iterable[str],
    position: Callable[[Mapping[str, Any]], float],
) -> int:
    """Move rows of held-out splits to train, and return how many values of the column lacked there. Equal rows move together.

    `shards` are those of each split, and follow.

    Raises:
        RecipeError: the column holds lists or records.
    """
    known = {label for _, label in _labels(folder / "train", column)}
    last: dict[str, tuple[float, dict[int, str]]] = {}
    for split in held_out:
        lacking = {row_id: label for row_id, label in _labels(folder / split, column) if label not in known}
        for row in SplitRows(folder / split).pick(lacking):
            row_id, own = row.pop(ROW_ID), position(row)
            before, ids = last.get(lacking[row_id], (-1.0, {}))
            if own >= before:
                last[lacking[row_id]] = own, {**(ids if own == before else {}), row_id: split}
    moved: dict[tuple[str, str], list[int]] = {}
    for row_id, split in sorted((row_id, split) for _, ids in last.values() for row_id, split in ids.items()):
        shard = next(own for own in reversed(shards[split]) if own.first_row_id <= row_id)
        moved.setdefault((split, shard.name), []).append(row_id - shard.first_row_id)
    for (split, name), places in moved.items():
        _move_to_train(folder, split, name, places, shards)
    return len(last)


def _move_to_train(
    folder: Path, split: str, name: str, places: Sequence[int], shards: Mapping[str, list[Shard]]
) -> None:
    """Move the rows at some places of a part of the source from its shard of a split to that of train."""
    first = next(shard.first_row_id for shard in shards[split] if shard.name == name)
    rows, train = pq.read_table(folder / split / name), folder / "train" / name
    is_moved = pc.is_in(rows[ROW], pa.array(places, pa.int32()))
    joined = pa.concat_tables([*([pq.read_table(train)] if train.exists() else []), rows.filter(is_moved)])
    for of, table in (("train", joined.sort_by(ROW)), (split, rows.filter(pc.invert(is_moved)))):
        path = folder / of / name
        path.unlink(missing_ok=True)  # another name of the file may be kept for the next run
        found = [shard for shard in shards[of] if shard.name != name]
        if len(table):
            found.append(write_shard(table, path).model_copy(update={"first_row_id": first}))
        shards[of][:] = sorted(found, key=lambda shard: shard.first_row_id)


def _labels(folder: Path, column: str) -> Iterator[tuple[int, str]]:
    """Yield the row_id and the value of each row that has one, as it is learned."""
    for row in SplitRows(folder).reading({column: "label"}).rows([ROW_ID, column]):
        if isinstance(row[column], list | dict):
            what, fix = (
                f"`{column}` holds lists or records",
                "name a column with one value in a row, or remove this key",
            )
            raise RecipeError.at("data.split.stratify", what, fix)
        if label := (as_text(row[column]) or "").strip():
            yield row[ROW_ID], label

"""`data.split.stratify`: each value of a column, such as a label, has at least one training row.

A hash gives each row a position, and those at the first positions are held out. If these are all rows of a label, the last of them is
moved to train. So a row keeps its split when others are added, unless it is such a last one, and one behind it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from params import RecipeError
from tasks.ingestion.placement import Destinations, move_rows
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
    last = _last_rows_of_lacking_values(folder, column, held_out, position)
    moved: dict[tuple[str, str], list[int]] = {}
    for row_id, split in sorted((row_id, split) for ids in last.values() for row_id, split in ids.items()):
        shard = next(own for own in reversed(shards[split]) if own.first_row_id <= row_id)
        moved.setdefault((split, shard.name), []).append(row_id - shard.first_row_id)
    for (split, name), places in moved.items():
        pair = {of: shard for of in (split, "train") for shard in shards[of] if shard.name == name}
        found, _ = move_rows(folder, pair, partial(_with_moved, split, places))
        for of in (split, "train"):
            by_name = {shard.name: shard for shard in shards[of]}
            by_name.pop(name, None)
            if of in found:
                by_name[name] = found[of]
            shards[of][:] = sorted(by_name.values(), key=lambda shard: shard.first_row_id)
    return len(last)


def _last_rows_of_lacking_values(
    folder: Path, column: str, held_out: Iterable[str], position: Callable[[Mapping[str, Any]], float]
) -> dict[str, dict[int, str]]:
    """Return for each value that no training row has its held-out row with the last position, and rows that are equal, by their row_id."""
    known = {label for _, label in _labels(folder / "train", column)}
    last_position, rows = dict[str, float](), dict[str, dict[int, str]]()
    for split in held_out:
        lacking = {row_id: label for row_id, label in _labels(folder / split, column) if label not in known}
        for row in SplitRows(folder / split).pick(lacking):
            row_id, own = row.pop(ROW_ID), position(row)
            label = lacking[row_id]
            before = last_position.get(label, -1.0)
            if own > before:
                last_position[label], rows[label] = own, {row_id: split}
            elif own == before:
                rows[label][row_id] = split
    return rows


def _with_moved(split: str, places: Sequence[int], of: str, table: pa.Table) -> Destinations:
    """Return where the rows of a shard go: those at some places of one of `split` to train."""
    is_moved = np.isin(table[ROW].to_numpy(), places) & (of == split)
    return np.where(is_moved, "train", of).astype(object)


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

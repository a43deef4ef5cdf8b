"""`data.split.stratify`: each value of a column, such as a label, has at least one training row.

A hash gives each row a position, and the rows at the first positions are held out. If those are all rows of a label, the last of them is
moved to train. So a row keeps its split when others are added, unless it is such a last one, and one behind it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from params import RecipeError
from tasks.ingestion.parquet import write_shard
from tasks.shards.split_rows import as_text
from trainer.data.shards import ROW, Shard


@dataclass(frozen=True)
class LastRows:
    """The rows of a label at the last position; equal rows have the same one."""

    position: float
    held_out: tuple[tuple[str, str, int], ...]
    """Shard, split and place of each; empty if they are in train."""


Labels: TypeAlias = dict[str, LastRows]


def note_labels(
    labels: Labels, column: str, values: Iterable[Any], placed: Sequence[tuple[str, float]], shard: str, first: int
) -> None:
    """Add the labels of rows, each with its split and position, from place `first` of a shard on.

    Raises:
        RecipeError: the column holds lists or records.
    """
    for place, (value, (split, position)) in enumerate(zip(values, placed, strict=True), start=first):
        if isinstance(value, list | dict):
            what, fix = (
                f"`{column}` holds lists or records",
                "name a column with one value in a row, or remove this key",
            )
            raise RecipeError.at("data.split.stratify", what, fix)
        if label := (as_text(value) or "").strip():
            join_labels(labels, {label: LastRows(position, () if split == "train" else ((shard, split, place),))})


def join_labels(labels: Labels, found: Labels) -> None:
    """Add the labels of later rows to those of earlier ones."""
    for label, rows in found.items():
        known = labels.get(label, rows)
        if rows.position == known.position and rows is not known:
            labels[label] = LastRows(rows.position, known.held_out + rows.held_out)
        elif rows.position >= known.position:
            labels[label] = rows


def move_rows_to_train(folder: Path, labels: Labels, shards: Mapping[str, list[Shard]]) -> int:
    """Move the last rows of each label that train lacks there, and return the number of these labels."""
    moved = [rows.held_out for rows in labels.values() if rows.held_out]
    places: dict[str, dict[str, list[int]]] = {}
    for name, split, place in (one for held_out in moved for one in held_out):
        places.setdefault(name, {}).setdefault(split, []).append(place)
    for name, by_split in places.items():
        first = next(own.first_row_id for split in by_split for own in shards[split] if own.name == name)
        path = folder / "train" / name
        tables = [pq.read_table(path)] if path.exists() else []
        for split, own_places in by_split.items():
            table = pq.read_table(folder / split / name)
            is_moved = pc.is_in(table[ROW], pa.array(own_places, pa.int32()))
            tables.append(table.filter(is_moved))
            _replace(folder / split / name, table.filter(pc.invert(is_moved)), first, shards[split])
        _replace(path, pa.concat_tables(tables).sort_by(ROW), first, shards["train"])
    return len(moved)


def _replace(path: Path, table: pa.Table, first_row_id: int, shards: list[Shard]) -> None:
    path.unlink(missing_ok=True)  # another name of the file may be kept for the next run
    found = [own for own in shards if own.name != path.name]
    if len(table):
        found.append(write_shard(table, path).model_copy(update={"first_row_id": first_row_id}))
    shards[:] = sorted(found, key=lambda own: own.first_row_id)

"""Scores of every row of a split.

Logits are reduced to scores batch by batch. Memory holds only the scores: for each row 8 bytes per score name (float64)
and 8 for the row_id. Statistics count rows that belong together as one observation: those of a group (`data.group_by`), such as of one
customer, equal ones (copies.py), and those that a metric looks at together, such as of a query.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from params import ModelError
from tasks.progress import iterate_with_progress
from tasks.shards.split_rows import SplitRows, group_key_of_row
from trainer.data.shards import ROW_ID
from trainer.data.tokens import Sequences
from trainer.loop.metrics import EvaluationMetrics
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, scipy, torch
from trainer.objectives.bases.objective import Example

_MAX_IDS_IN_ERROR = 5


@dataclass(frozen=True)
class RowScores:
    """The scores of N rows."""

    row_ids: NDArray[np.int64]
    """(N,), ascending."""
    columns: dict[str, NDArray[np.float64]]
    """Each (N,), by `Objective.score_names` and `example_counts`."""
    groups: NDArray[np.int64] | None = None
    """(N,), equal for rows that belong together, or that a metric looks at together; None if each row is on its own."""
    measured: NDArray[np.float64] | None = None
    """What `score_batch` returned of all rows, (N, M), if that is vectors of a space that can be compared with another."""

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def observations(self) -> int:
        """How many rows or groups of rows there are."""
        return len(self) if self.groups is None else len(np.unique(self.groups))

    def take(self, positions: NDArray[Any] | slice) -> RowScores:
        """The scores of some rows, by position or mask."""
        columns = {name: column[positions] for name, column in self.columns.items()}
        return RowScores(self.row_ids[positions], columns, None if self.groups is None else self.groups[positions])

    def row(self, position: int) -> dict[str, float]:
        return {name: float(column[position]) for name, column in self.columns.items()}

    def write(self, path: Path) -> None:
        """Write one line per row, as Parquet."""
        pq.write_table(pa.table({"row_id": self.row_ids, **self.columns}), path)


@dataclass(frozen=True)
class ScoredModel:
    scores: RowScores
    metrics: Mapping[str, float]
    """Includes those of the recipe's own function."""
    sequences: int = 0
    """How many sequences of tokens the rows are."""


@dataclass(frozen=True)
class RowGroups:
    """The group of each row of a split, by the columns that it names."""

    row_ids: NDArray[np.int64]
    """(N,), ascending."""
    numbers: NDArray[np.int64]
    """(N,), equal for rows that belong together."""

    @classmethod
    def read(cls, rows: SplitRows, row_ids: Collection[int] | None = None) -> Self | None:
        """Read the groups of all rows of a split, or of some, by `data.group_by`; None if each row is on its own."""
        if not rows.group_by:
            return None
        columns = [ROW_ID, *rows.group_by]
        ids, numbers, known = list[int](), list[int](), dict[str | int, int]()
        for row in rows.rows(columns) if row_ids is None else rows.pick(row_ids, columns):
            key = group_key_of_row(row, rows.group_by)
            numbers.append(known.setdefault(row[ROW_ID] if key is None else key, len(known)))
            ids.append(row[ROW_ID])
        return cls(np.array(ids), np.array(numbers)) if len(known) < len(numbers) else None

    def of(self, row_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of some rows of the split, (M,): two models may have scores of different rows."""
        return self.numbers[np.searchsorted(self.row_ids, row_ids)]


def resampling_units(groups: NDArray[np.int64] | None, scored: NDArray[np.float64] | None) -> NDArray[np.int64] | None:
    """Return the numbers of what is resampled as one: rows that are in the same group, or the same `Objective.group_score`."""
    if groups is None or scored is None:
        return groups if scored is None else np.unique(scored, return_inverse=True)[1]
    own, other = (np.unique(one, return_inverse=True)[1] for one in (groups, scored))
    size = own.max() + other.max() + 2
    links = scipy.sparse.coo_array((np.ones(len(own)), (own, own.max() + 1 + other)), shape=(size, size))
    _, found = scipy.sparse.csgraph.connected_components(links, directed=False)
    numbers: NDArray[np.int64] = found[own].astype(np.int64)
    return numbers


def align_to_common_rows(one: RowScores, other: RowScores, left_out: NDArray[np.int64]) -> tuple[RowScores, RowScores]:
    """Return the scores of two models of the rows that both have, in the same groups, without the `row_id`s that are left out."""
    if len(left_out) or not np.array_equal(one.row_ids, other.row_ids):
        shared = np.setdiff1d(np.intersect1d(one.row_ids, other.row_ids), left_out)
        one, other = one.take(np.isin(one.row_ids, shared)), other.take(np.isin(other.row_ids, shared))
    if one.groups is None or other.groups is None or np.array_equal(one.groups, other.groups):
        return one, other
    groups = resampling_units(one.groups, other.groups.astype(float))  # one may lack a row that joined two of them
    return replace(one, groups=groups), replace(other, groups=groups)


def without_rows(sequences: Sequences, row_ids: NDArray[np.int64]) -> Sequences:
    """Return the sequences of a split but those of some rows, in the same order."""
    if not len(row_ids):
        return sequences
    places = np.flatnonzero(~np.isin(sequences.row_ids(), row_ids)).tolist()
    return cast("Sequences", torch.utils.data.Subset(cast("Any", sequences), places))


def score_rows(
    model: PreTrainedModel,
    sequences: Sequences | list[Example],
    *,
    metrics: EvaluationMetrics,
    batch_size: int,
    name: str,
    batch_tokens: int | None = None,
    groups: RowGroups | None = None,
    documents: list[Example] | None = None,
) -> RowScores:
    """Score every row of a split, whose groups are `groups`; `documents` are those of a corpus.

    Raises:
        ModelError: a score is not finite.
    """
    objective = metrics.objective
    names = (*objective.score_names(metrics.state), *objective.example_counts)
    row_ids: list[NDArray[np.int64]] = []
    measured: list[NDArray[np.float64]] = []  # (B, K) each
    counted: list[NDArray[np.float64]] = []
    batches = metrics.batches(model, sequences, batch_size=batch_size, batch_tokens=batch_tokens)
    total = math.ceil(len(sequences) / batch_size)  # more, if there are long ones
    for examples, parts in iterate_with_progress(batches, what=f"evaluate: {name} batches", total=total):
        metrics.update(parts)
        known = [[example.get(key, 0) for key in objective.example_counts] for example in examples]
        row_ids.append(np.array([example["row_id"] for example in examples]))
        measured.append(parts[0].double().numpy())
        counted.append(np.array(known, float))
    corpus = None
    if documents:
        batches = metrics.batches(model, documents, batch_size=batch_size, batch_tokens=batch_tokens)
        total = math.ceil(len(documents) / batch_size)
        progress = iterate_with_progress(batches, what=f"evaluate: {name} batches of documents", total=total)
        corpus = np.concatenate([parts[0].double().numpy() for _, parts in progress])
    whole = np.concatenate(measured)
    of_split = objective.scores_of_split(whole, metrics.state, corpus)
    ids, table = np.concatenate(row_ids), np.concatenate([of_split, np.concatenate(counted)], axis=1)
    order = np.lexsort((*table.T, ids))  # the windows of a row in the same order for every batch size: equal sums
    rows, starts = np.unique(ids[order], return_index=True)
    sums = np.add.reduceat(table[order], starts)
    if len(bad := rows[~np.isfinite(sums).all(axis=1)]):
        shown = ", ".join([*map(str, bad[:_MAX_IDS_IN_ERROR]), *(["..."] if len(bad) > _MAX_IDS_IN_ERROR else [])])
        what = f"scores of {len(bad)} of {len(rows)} rows are not finite (row_id {shown})"
        raise ModelError(name, what, "inspect one of them with `evergreen trace`; lower training.learning_rate")
    columns = dict(zip(names, sums.T, strict=True))
    belonging = groups.of(rows) if groups else None
    units = resampling_units(belonging, columns.get(objective.group_score or ""))
    return RowScores(rows, columns, units, whole[order] if objective.vector_space else None)

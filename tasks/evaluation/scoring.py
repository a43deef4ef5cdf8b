"""Scores of every row of a split, and the record of the models that were scored.

Logits are reduced to scores batch by batch. Memory holds only the scores: for each row 8 bytes per score name (float64)
and 8 for the row_id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from params import ModelError
from params.schema import Direction
from tasks.drift.report import ChampionConfidence
from tasks.evaluation.groups import RowGroups, resampling_units
from tasks.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from tasks.evaluation.reading import CommonText
    from trainer.data.tokens import Sequences
    from trainer.loop.metrics import EvaluationMetrics
    from trainer.objectives.bases.objective import Objective

_MAX_IDS_IN_ERROR = 5


@dataclass(frozen=True)
class Scores:
    """The scores of N rows."""

    row_ids: NDArray[np.int64]
    """(N,), ascending."""
    columns: dict[str, NDArray[np.float64]]
    """Each (N,), by `Objective.score_names` and `example_counts`."""
    groups: NDArray[np.int64] | None = None
    """(N,), equal for rows that belong together, or that a metric looks at together; None if each row is on its own."""

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def observations(self) -> int:
        """How many rows or groups of rows there are."""
        return len(self) if self.groups is None else len(np.unique(self.groups))

    def take(self, positions: NDArray[Any] | slice) -> Scores:
        """The scores of some rows, by position or mask."""
        columns = {name: column[positions] for name, column in self.columns.items()}
        return Scores(self.row_ids[positions], columns, None if self.groups is None else self.groups[positions])

    def row(self, position: int) -> dict[str, float]:
        """The scores of one row."""
        return {name: float(column[position]) for name, column in self.columns.items()}

    def write(self, path: Path) -> None:
        """Write one line per row, as Parquet."""
        pq.write_table(pa.table({"row_id": self.row_ids, **self.columns}), path)


@dataclass(frozen=True)
class ScoredModel:
    """The scores of a model, and the metrics that follow from them."""

    scores: Scores
    metrics: Mapping[str, float]
    """Includes those of the recipe's own function."""
    sequences: int = 0
    """How many sequences of tokens the rows are."""


@dataclass(frozen=True)
class ScoredModels:
    """The candidate, and the models that were scored on the same split to compare with it."""

    metric: str
    """The metric that decides."""
    directions: Mapping[str, Direction]
    """Whether the smallest or the largest value of each metric is best."""
    model: ScoredModel
    """The candidate: the best weights of the training."""
    untrained: ScoredModel | None
    champion: ScoredModel | None
    text: CommonText | None = None
    """What candidate and champion both read; None without a champion."""
    confidence: ChampionConfidence | None = None
    """The champion's on the new rows."""
    compared: Scores | None = None
    """The candidate's on the text that the champion can read, too, if that is less than it reads by itself."""

    def can_compare(self, metric: str) -> bool:
        """Whether a metric can be compared with the champion's."""
        return self.text is None or metric not in self.text.incomparable

    def common(self, *, written: bool = False) -> tuple[Scores, Scores] | None:
        """The scores of candidate and champion on the rows that both read as a whole; None without a champion.

        With `written`, only of the rows whose text both tokenizers give back.
        """
        if self.champion is None:
            return None
        one, other = self.compared or self.model.scores, self.champion.scores
        skipped = (self.text.left_out, self.text.unwritten) if self.text else ()
        left_out = [rows for rows in skipped[: 1 + written] if len(rows)]
        if not left_out and np.array_equal(one.row_ids, other.row_ids):
            return _in_same_units(one, other)
        shared = np.setdiff1d(np.intersect1d(one.row_ids, other.row_ids), np.concatenate([*left_out, one.row_ids[:0]]))
        return _in_same_units(one.take(np.isin(one.row_ids, shared)), other.take(np.isin(other.row_ids, shared)))

    def __iter__(self) -> Iterator[tuple[str, ScoredModel]]:
        """The models that were scored, by name, the candidate first."""
        named = {"model": self.model, "untrained": self.untrained, "champion": self.champion}
        return ((name, one) for name, one in named.items() if one is not None)


def _in_same_units(one: Scores, other: Scores) -> tuple[Scores, Scores]:
    """Return scores of the same rows in the same groups: one of the models may lack a row that joined two of them."""
    if one.groups is None or other.groups is None or np.array_equal(one.groups, other.groups):
        return one, other
    groups = resampling_units(one.groups, other.groups.astype(float))
    return replace(one, groups=groups), replace(other, groups=groups)


def score(
    model: PreTrainedModel,
    sequences: Sequences,
    *,
    objective: Objective[Any],
    metrics: EvaluationMetrics,
    batch_size: int,
    name: str,
    groups: RowGroups | None = None,
) -> Scores:
    """Score every row of a split, whose groups are `groups`.

    Every score must be finite.

    Raises:
        ModelError: a score is not finite.
    """
    names = (*objective.score_names(metrics.state), *objective.example_counts)
    row_ids: list[NDArray[np.int64]] = []
    measured: list[NDArray[np.float64]] = []  # (B, K) each
    batches = metrics.batches(model, sequences, batch_size=batch_size)
    total = math.ceil(len(sequences) / batch_size)
    for examples, parts in progress(batches, what=f"evaluate: {name} batches", total=total):
        metrics.update(parts)
        known = [[example.get(key, 0) for key in objective.example_counts] for example in examples]
        row_ids.append(np.array([example["row_id"] for example in examples]))
        measured.append(np.concatenate([parts[0].double().numpy(), np.array(known, float)], axis=1))
    ids, table = np.concatenate(row_ids), np.concatenate(measured)
    order = np.lexsort((*table.T, ids))  # the windows of a row in the same order for every batch size: equal sums
    rows, starts = np.unique(ids[order], return_index=True)
    columns = dict(zip(names, np.add.reduceat(table[order], starts).T, strict=True))
    scores = Scores(
        rows, columns, resampling_units(groups.of(rows) if groups else None, columns.get(objective.group_score or ""))
    )
    _refuse_non_finite(scores, name)
    return scores


def _refuse_non_finite(scores: Scores, name: str) -> None:
    bad = np.zeros(len(scores), bool)
    for column in scores.columns.values():
        bad |= ~np.isfinite(column)
    if bad.any():
        ids = ", ".join(map(str, scores.row_ids[bad][:_MAX_IDS_IN_ERROR]))
        ids += ", ..." if bad.sum() > _MAX_IDS_IN_ERROR else ""
        raise ModelError(
            name,
            f"scores of {bad.sum()} of {len(scores)} rows are not finite (row_id {ids})",
            "inspect one of them with `evergreen trace`; lower training.learning_rate",
        )

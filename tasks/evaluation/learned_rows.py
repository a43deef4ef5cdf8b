"""Which held-out rows a model has learned from: by itself, or through what it started from.

A row counts for a model only if neither it nor any model that it goes back to (ancestors.py) has learned from it: else it would know the
answer. A row that was in a train split can be held out now because the time goes on, because `seed` or `data.split` has changed, or because the base is a
model of another recipe.

    a release        says until which time it has learned, and has hashes of the rows (in a profile of many rows, of some of them)
    runs/<x>/model   the recipe x has the rows themselves, and what its own training started from
    another model    says nothing: it is not one of this project

What is not known is said, never taken for "not learned": `LearnedRows.unknown`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from params.foundation.artifacts import KNOWN_ROWS, PROFILE, SPLITS, Artifacts
from params.schema import Model
from tasks.digests import (
    PROVENANCE,
    ReleaseRecord,
    files_in_release_form,
    validated_rows_digest,
    weight_file_hashes,
    weights_digest,
)
from tasks.drift.known import KnownHashes, find_known_rows, read_hashes, write_hashes
from tasks.drift.rows import ComparedColumns
from tasks.evaluation.ancestors import Ancestor, list_ancestors
from tasks.evaluation.report import Blessing
from tasks.shards.split_rows import SplitRows
from tasks.shards.times import NO_TIME, read_times, time_of_value
from trainer.data.shards import ROW_ID

logger = logging.getLogger(__name__)
_NO_ROWS, _NO_IDS = KnownHashes(), np.zeros(0, np.int64)


@dataclass(frozen=True)
class LearnedRows:
    """The rows that a model, a release or the training of a recipe, has learned from, as far as that is known."""

    hashes: KnownHashes
    until: str = ""
    """The time of the newest one; empty if rows had no times."""
    is_split_by_time: bool = False
    """Whether its held-out rows were newer than these."""
    unknown: tuple[str, ...] = ()
    """Why these may not be all; each names the model."""
    is_of_base: bool = False
    """Whether a base has learned from them, which may be a model of quite other data."""


@dataclass(frozen=True)
class HeldOutRows:
    """The rows of a split, as they are looked for among those that models have learned from."""

    rows: SplitRows
    columns: ComparedColumns

    def learned_by(self, models: Sequence[LearnedRows]) -> NDArray[np.int64]:
        """Return the row_ids of the rows that one of these models has learned from, ascending."""
        if not models:
            return _NO_IDS
        known = KnownHashes.join(one.hashes for one in models)
        row_ids, is_known = find_known_rows(self.rows, self.columns, known)
        return np.unique(np.concatenate([row_ids[is_known], *map(self._learned_by_time, models)]))

    def without_times_of_other_data(self, models: Iterable[LearnedRows]) -> list[LearnedRows]:
        """Return the same models, without the times of bases that have learned from none of the rows in any split.

        Their data are others, and how new those are says nothing of these rows.
        """
        return [self._without_times_of_other_data(one) for one in models]

    def _without_times_of_other_data(self, model: LearnedRows) -> LearnedRows:
        if not (model.is_of_base and model.until):
            return model
        folders = [folder for split in SPLITS if (folder := self.rows.folder.parent / split).is_dir()]
        shares = any(find_known_rows(SplitRows(one), self.columns, model.hashes)[1].any() for one in folders)
        return model if shares else replace(model, until="")

    def _learned_by_time(self, model: LearnedRows) -> NDArray[np.int64]:
        times, until = self.rows.times, time_of_value(model.until)
        # by hash, a row that is older than others may have been held out all the time
        if until == NO_TIME or not times or not (model.is_split_by_time or times["split"] == "time"):
            return _NO_IDS
        batches = self.rows.batches([ROW_ID, times["column"]])
        found = [batch[ROW_ID].to_numpy()[read_times(batch[times["column"]]) <= until] for batch in batches]
        return np.concatenate([_NO_IDS, *found])


def rows_of_release(folder: Path, name: str, columns: ComparedColumns) -> LearnedRows:
    """Return the rows that a release has learned from, whose files are in a folder, itself and through what it started from."""
    try:
        record = ReleaseRecord.of(folder)
    except ValueError as error:
        return LearnedRows(_NO_ROWS, unknown=(f"{name}: its {PROVENANCE} cannot be used: {error}",))
    unknown, hashes = list(record.data.unknown if record else ()), _NO_ROWS
    try:
        hashes = read_hashes(folder, columns, needs_all=True)
    except ValueError as error:
        unknown.append(f"{name}: {error}")
        if _names_some(folder):
            hashes = _read_some(folder, columns)
    until, split = (record.data.learned_until, record.data.split) if record else ("", "")
    return LearnedRows(hashes, until, split == "time", tuple(unknown))


def _names_some(folder: Path) -> bool:
    return (folder / PROFILE).exists() and not (folder / KNOWN_ROWS).exists()


def _read_some(folder: Path, columns: ComparedColumns) -> KnownHashes:
    try:
        return read_hashes(folder, columns, needs_all=False)
    except ValueError:
        return _NO_ROWS


def _rows_of_run(artifacts: Artifacts, columns: ComparedColumns) -> LearnedRows:
    name, train = f"{artifacts.run}/model", artifacts.rows / "train"
    if not train.is_dir():
        fix = f"fetch them: `dvc pull validate@{artifacts.recipe}`"
        return LearnedRows(_NO_ROWS, unknown=(f"{name}: the rows of its training are not here; {fix}",))
    rows = SplitRows(train)
    unknown, hashes = list[str](), _NO_ROWS
    if lacking := sorted({*columns.content} - {*rows.schema.names}):
        unknown.append(f"{name}: it learned from rows without the column {lacking[0]}")
    else:
        hashes = KnownHashes.of(rows, columns)
    if _has_other_rows_now(artifacts):
        unknown.append(f"{name}: its rows have changed since it was judged; run {artifacts.recipe}, and train again")
    return LearnedRows(hashes, _learned_until(artifacts), rows.times.get("split") == "time", tuple(unknown))


def _has_other_rows_now(artifacts: Artifacts) -> bool:
    """Whether the valid rows of a recipe are no longer those that its model was judged with, as after a night that ended before its training."""
    try:
        judged = Blessing.model_validate_json(artifacts.blessing.read_bytes())
    except (OSError, ValueError):
        return False
    if judged.data == validated_rows_digest(artifacts):
        return False
    files = files_in_release_form("merged", weight_file_hashes(artifacts.model))
    return judged.is_in_release(weights_digest(files) or "")


def _learned_until(artifacts: Artifacts) -> str:
    path = artifacts.report("ingest")
    return str(json.loads(path.read_bytes()).get("learned_until", "")) if path.exists() else ""


def rows_before_training(artifacts: Artifacts, model: Model | None, columns: ComparedColumns) -> list[LearnedRows]:
    """Return the rows that the model of a run had learned from before its training: through its start, and through its base.

    `model` is the section of its recipe, by default the one that the recipe has now.
    """
    return [_rows_of_ancestor(one, columns) for one in list_ancestors(artifacts, model)]


def _rows_of_ancestor(ancestor: Ancestor, columns: ComparedColumns) -> LearnedRows:
    if ancestor.unknown:
        return LearnedRows(_NO_ROWS, unknown=(ancestor.unknown,))
    if ancestor.run:
        found = _rows_of_run(ancestor.run, columns)
    else:
        assert ancestor.folder, "a release says what it is in its files"
        found = rows_of_release(ancestor.folder, ancestor.name, columns)
    return replace(found, is_of_base=ancestor.is_of_base)


def list_unknown(models: Iterable[LearnedRows]) -> tuple[str, ...]:
    """Return what is not known of the rows that models have learned from, each reason once."""
    return tuple(dict.fromkeys(reason for one in models for reason in one.unknown))


def write_rows_for_release(artifacts: Artifacts, model: Model, columns: ComparedColumns, path: Path) -> None:
    """Write the hashes of all rows that the model of a run has learned from, if it goes back to another model or may do so."""
    before = KnownHashes.join(one.hashes for one in rows_before_training(artifacts, model, columns))
    is_named = artifacts.known_rows.exists()
    if is_named or len(before.hashes):
        own = KnownHashes.of(SplitRows(artifacts.rows / "train"), columns)
        named = [read_hashes(artifacts.validated, columns, needs_all=True)] if is_named else []
        write_hashes(KnownHashes.join([own, *named, before]), columns, path)

"""Which held-out rows a model has learned from: by itself, or through what it started from.

A row counts for a model only if neither it nor any model that it goes back to (ancestors.py) has learned from it: else it would know the
answer. A row that was in a train split can be held out now because the time goes on, because `seed` or `data.split` has changed, or because the base is a
model of another recipe.

    a model of a run    has what its training has written beside it (training_record.py): hashes of its rows, and of those of its start and its base
    a release           has the same file; one of an earlier version may have the hashes in a profile only (of many rows, of some of them)
    another model       says nothing: no project has made it

Nothing is asked of a recipe's rows as they are now: they may be others than those that its model has learned from. A row with another label is
looked for by its input. What is not known is said, never taken for "not learned": `LearnedRows.unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from params.foundation.artifacts import KNOWN_ROWS, PROFILE, SPLITS, Artifacts
from params.schema import Model
from tasks.digests import PROVENANCE, RecordOfRows, ReleaseRecord
from tasks.known_rows.hashes import KnownHashes, Part, find_known_rows, read_hashes
from tasks.known_rows.rows import ComparedColumns
from tasks.lineage.ancestors import Ancestor, list_ancestors, list_parents, record_ancestors
from tasks.lineage.training_record import SaidOfRows, TrainingRecord
from tasks.shards.split_rows import SplitRows, group_key_of_row
from tasks.shards.times import NO_TIME, read_times, time_of_value
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import Objective

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
        """Return the row_ids of the rows that one of these models has learned from, ascending, and of all rows of their groups."""
        if not models:
            return _NO_IDS
        known = KnownHashes.join(one.hashes for one in models)
        row_ids, is_known = find_known_rows(self.rows, self.columns, known)
        return self._with_their_groups(np.concatenate([row_ids[is_known], *map(self._learned_by_time, models)]))

    def _with_their_groups(self, learned: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return these row_ids, and those of rows that belong together with one of them (`data.group_by`), each once, ascending."""
        group_by, known = self.rows.group_by, {*learned.tolist()}
        if not known or not group_by:
            return np.unique(learned)
        keys = {row[ROW_ID]: group_key_of_row(row, group_by) for row in self.rows.rows([ROW_ID, *group_by])}
        groups = {keys[row_id] for row_id in known} - {None}
        return np.array(sorted(row_id for row_id, key in keys.items() if row_id in known or key in groups), np.int64)

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
        hashes = read_hashes(folder, columns, needs_all=True, by_input=True)
    except ValueError as error:
        unknown.append(f"{name}: {error}")
        if _names_some(folder):
            hashes = _read_some(folder, columns)
    if not hashes.has_inputs and columns.has_targets:
        unknown.append(
            f"{name}: it names its rows with their labels, so it does not know a row whose label has changed"
        )
    unknown += _why_not_found(hashes, name)
    until, split = (record.data.learned_until, record.data.split) if record else ("", "")
    return LearnedRows(hashes, until, split == "time", tuple(unknown))


def _why_not_found(hashes: KnownHashes, name: str) -> list[str]:
    """Return why rows that a model has learned from may not be found among these hashes; empty if they are."""
    if hashes.is_read_alike:
        return []
    return [f"{name}: it learned from the same columns as another objective reads them, so its rows are not found"]


def _names_some(folder: Path) -> bool:
    return (folder / PROFILE).exists() and not (folder / KNOWN_ROWS).exists()


def _read_some(folder: Path, columns: ComparedColumns) -> KnownHashes:
    try:
        return read_hashes(folder, columns, needs_all=False)
    except ValueError:
        return _NO_ROWS


def _rows_of_run(folder: Path, name: str, columns: ComparedColumns) -> LearnedRows:
    """Return the rows that the model of a run has learned from, whose files are in a folder."""
    file = folder / KNOWN_ROWS
    if not file.exists():
        why = (
            f"{name}: its training did not record which rows it has learned from, as those of earlier versions did not"
        )
        return LearnedRows(_NO_ROWS, unknown=(f"{why}; train it again",))
    try:
        record = TrainingRecord.read(file, columns)
    except ValueError as error:
        return LearnedRows(_NO_ROWS, unknown=(f"{name}: {error}",))
    said, rows = record.said, record.rows
    parts, hashes = [said.own, said.start, said.base], KnownHashes.join(rows.values())
    shares = np.isin(rows["base"].hashes, rows["own"].hashes).any()
    times = [one for one in parts if one is not said.base or shares]  # else the base has learned from other data
    return LearnedRows(
        hashes,
        max(one.learned_until for one in times),
        "time" in [one.split for one in times],
        (*(reason for one in parts for reason in one.unknown), *_why_not_found(hashes, name)),
    )


def rows_before_training(artifacts: Artifacts, model: Model, columns: ComparedColumns) -> list[LearnedRows]:
    """Return the rows that the model of a run had learned from before its training, as that has recorded it: through its start, and its base.

    `model` is the section of its recipe.
    """
    name = f"{artifacts.run}/model"
    if not artifacts.known_rows.exists():
        why = f"{name}: its training did not record what it goes back to, as those of earlier versions did not; train again"
        return [LearnedRows(_NO_ROWS, unknown=(why,))] if list_ancestors(artifacts, model) else []
    try:
        record = TrainingRecord.read(artifacts.known_rows, columns)
    except ValueError as error:
        return [LearnedRows(_NO_ROWS, unknown=(f"{name}: {error}",))]
    said, rows = record.said, record.rows
    pairs = [(said.start, rows["start"], False), (said.base, rows["base"], True)]
    found = [LearnedRows(its, one.learned_until, one.split == "time", one.unknown, of) for one, its, of in pairs]
    found.append(LearnedRows(_NO_ROWS, unknown=said.own.unknown))
    return [one for one in found if len(one.hashes.hashes) or one.until or one.unknown]


def record_learned_rows(folder: Path, artifacts: Artifacts, model: Model, objective: Objective[Any]) -> None:
    """Write beside the model in a folder which rows it has learned from: those of its tokens, and what its start and its base have learned from.

    The file also says which models it goes back to, as far as that is known now.

    `model` is the section of the recipe that the training had.
    """
    columns = ComparedColumns.of_objective(objective)
    ancestors = list_parents(artifacts, model)
    parents = [_rows_of_parent(one, columns) for one in ancestors]
    start, base = ([one for one in parents if one.is_of_base == is_of_base] for is_of_base in (False, True))
    own, said = _read_own_rows(artifacts, columns)
    rows: dict[Part, KnownHashes] = {"own": own, "start": _join(start), "base": _join(base)}
    found = SaidOfRows(own=said, start=_describe(start), base=_describe(base), ancestors=record_ancestors(ancestors))
    TrainingRecord(rows, found).write(columns, folder)


def _read_own_rows(artifacts: Artifacts, columns: ComparedColumns) -> tuple[KnownHashes, RecordOfRows]:
    try:
        own = TrainingRecord.read(artifacts.train_rows, columns)
    except ValueError as error:
        return _NO_ROWS, RecordOfRows(
            unknown=(f"{artifacts.run}/model: which rows its tokens are of is unknown: {error}",)
        )
    return own.rows["own"], own.said.own


def _join(models: Iterable[LearnedRows]) -> KnownHashes:
    return KnownHashes.join(one.hashes for one in models)


def _describe(models: Sequence[LearnedRows]) -> RecordOfRows:
    return RecordOfRows(
        learned_until=max((one.until for one in models), default=""),
        split="time" if any(one.is_split_by_time for one in models) else "hash",
        unknown=list_unknown(models),
    )


def _rows_of_parent(parent: Ancestor, columns: ComparedColumns) -> LearnedRows:
    if parent.unknown:
        return LearnedRows(_NO_ROWS, unknown=(parent.unknown,))
    assert parent.folder, "it says what it is in its files"
    is_release = (parent.folder / PROVENANCE).exists()
    read = rows_of_release if is_release or not parent.is_of_base else _rows_of_run
    return replace(read(parent.folder, parent.name, columns), is_of_base=parent.is_of_base)


def list_unknown(models: Iterable[LearnedRows]) -> tuple[str, ...]:
    """Return what is not known of the rows that models have learned from, each reason once."""
    return tuple(dict.fromkeys(reason for one in models for reason in one.unknown))

"""Labels that people have corrected (`data.corrections`) in place of those of the source; the raw rows stay as they are.

A correction is for all rows with the same values in the objective's other columns, such as the same text. It names them by these values, or by
a hash of them, `row_hash`, as the rows of review.csv have it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from params import DataError, RecipeError
from params.foundation.artifacts import CORRECTIONS, SPLITS, Artifacts, link_or_copy
from params.foundation.hashing import file_sha256
from tasks.shards.kept_work import ShardTask, ShardWorkers, hash_settings
from tasks.shards.split_rows import NUMBER, SplitRows, table_of_values, values_of_column
from tasks.validation.check_results import objective_identity
from tasks.validation.report import CorrectionsReport
from tasks.validation.spreadsheet_cells import read_guarded_cell
from trainer.data.shards import ROW, ROW_ID, Shard
from trainer.objectives.bases.labels.names import as_learned
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import ColumnKind, Row, format_row_hash, hash_but_labels, label_columns

ROW_HASH: Final = "row_hash"
CORRECTED: Final = "corrected_label"
"""The column of review.csv that people fill in."""
WHY: Final = "why"
"""The column of review.csv that says why a row is there."""
DRAWN: Final = "random"
"""What it says of rows that were drawn at random."""
_GROUP_ROWS: Final = 8192


@contextlib.contextmanager
def corrected_rows(
    artifacts: Artifacts, method: Objective[Any], workers: ShardWorkers
) -> Iterator[tuple[Path, CorrectionsReport | None]]:
    """Yield the folder of the raw rows with the corrections of the source, and what they changed.

    Raises:
        RecipeError: the objective's rows have no label.
        DataError: a correction does not say which row it is for, or what its label is, or two contradict each other.
    """
    if not (artifacts.raw / CORRECTIONS).exists():
        yield artifacts.raw, None
        return
    folder = artifacts.scratch / "corrected-rows"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder, _write_corrected(artifacts.raw, folder, method, workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_corrected(raw: Path, folder: Path, method: Objective[Any], workers: ShardWorkers) -> CorrectionsReport:
    said = _read_said(SplitRows(raw / CORRECTIONS), method)
    drawn = {key for key, one in said.items() if DRAWN in str(one.row.get(WHY))}
    corrected = _CorrectedRows(method, {key: one.labels for key, one in said.items()})
    changed = {split: corrected.write_split(SplitRows(raw / split), folder / split, split, workers) for split in SPLITS}
    return CorrectionsReport(
        corrections=len(said),
        changed=changed,
        unmatched=[format_row_hash(one) for one in said if one not in corrected.known],
        drawn=len(drawn & corrected.known),
        drawn_wrong=len(drawn & corrected.wrong),
        given={label: rows for label, rows in corrected.given.items() if label not in corrected.of_source},
    )


def _read_said(table: SplitRows, method: Objective[Any]) -> dict[int, Correction]:
    """Return the corrections that ingest wrote, by the hash of the row that each is for."""
    names = table.schema.names
    labels = find_columns(method, names)[0]
    # a text that is no number would be read as null
    as_read = {name: kind for name, kind in method.columns().items() if name not in labels or kind != "number"}
    read = table.reading({name: kind for name, kind in as_read.items() if name in names})
    return read_corrections(((f"data.corrections, row {row[ROW_ID]}", row) for row in read.rows()), names, method)


@dataclass
class _CorrectedRows:
    """Writes rows with the labels of their corrections, and notes what these have changed."""

    method: Objective[Any]
    corrections: Mapping[int, Mapping[str, Any]]
    """Labels by the hash of the row."""
    known: set[int] = field(default_factory=set)
    """Those of rows that there are."""
    wrong: set[int] = field(default_factory=set)
    """Those of rows that had other labels."""
    given: Counter[str] = field(default_factory=Counter)
    """Rows by a label that only the correction gives them, for objectives with one column of labels."""
    of_source: set[str] = field(default_factory=set)
    """Labels that the source gives these rows."""

    def write_split(self, stored: SplitRows, folder: Path, split: str, workers: ShardWorkers) -> int:
        """Write the shards of a split, and return how many rows are changed."""
        read = stored.reading(self.method.columns()).shards
        columns = str(stored.schema.remove_metadata())  # without what is known of the times, which new rows change
        settings = {"work": "row hashes", "objective": objective_identity(self.method), "columns": columns}
        works = [ShardTask(own, hash_settings(shard=own.shard.sha256, **settings)) for own in read]
        hashes = workers.run(partial(hash_shard_rows, self.method), works, what=f"shards ({split} rows by hash)")
        folder.mkdir(parents=True)
        wanted, shards, changed = np.array(sorted(self.corrections), np.uint64), list[Shard](), 0
        for own, typed, found in zip(stored.shards, read, hashes, strict=True):
            places = np.flatnonzero(np.isin(found, wanted)).tolist()
            keys = {place: int(found[place]) for place in places}
            self._note_labels(typed, keys)
            target = folder / own.shard.name
            written = _write_shard(own, {place: self.corrections[key] for place, key in keys.items()}, target)
            self.known |= {*keys.values()}
            self.wrong |= {keys[place] for place in written}
            changed += len(written)
            if written:
                shards.append(own.shard.model_copy(update={"sha256": file_sha256(target)}))
            else:
                shards.append(own.shard)
                link_or_copy(own.manifest.path(own.shard), target)
        stored.write_manifest(folder, shards)
        return changed

    def _note_labels(self, rows: SplitRows, keys: Mapping[int, int]) -> None:
        if len(label_columns(self.method.columns())) != 1:
            return
        for place, before in _labels_at(self.method, rows, [*keys]).items():
            self.of_source |= before
            self.given.update(_learned_labels(self.method, self.corrections[keys[place]]) - before)


def _labels_at(method: Objective[Any], rows: SplitRows, places: Sequence[int]) -> dict[int, set[str]]:
    """Return the labels that the source gives the rows at some places of a shard; a row that the objective rejects has none."""
    if not places:
        return {}
    wanted, found = {*places}, dict[int, set[str]]()
    for place, row in enumerate(rows.rows([*method.columns()])):
        if place in wanted:
            found[place] = set() if method.reject_reason(row) else _learned_labels(method, row)
    return found


def _learned_labels(method: Objective[Any], row: Row) -> set[str]:
    return {as_learned(label, method.state_of) for label in method.row_labels(row)}


def hash_shard_rows(method: Objective[Any], rows: SplitRows) -> NDArray[np.uint64]:
    """Return the `row_hash` of each row of a shard, (N,)."""
    columns = method.columns()
    return np.array([hash_but_labels(columns, row) for row in rows.rows(list(columns))], np.uint64)


def find_columns(method: Objective[Any], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the objective's columns that corrections with these columns have the right labels in, and those that tell which row is meant.

    Raises:
        RecipeError: the objective's rows have no label.
        DataError: there are no such columns.
    """
    labels = label_columns(method.columns())
    if not labels:
        what = "has no effect: rows of this objective have no label beside their texts"
        raise RecipeError.at("data.corrections", what, "remove it, and correct the source")
    inputs, given = [name for name in method.columns() if name not in labels], [one for one in labels if one in names]
    if CORRECTED in names and len(labels) > 1:
        what = f"`{CORRECTED}` is one of {', '.join(labels)}"
        raise DataError("data.corrections", what, "give the corrections these columns instead")
    if not (given or CORRECTED in names) or not (ROW_HASH in names or {*inputs} <= {*names}):
        what = f"needs {', '.join(labels)}, or {CORRECTED}; and {ROW_HASH}, or {', '.join(inputs)}; it has {', '.join(names)}"
        raise DataError("data.corrections", what, "add these columns")
    return given, inputs


class Correction(NamedTuple):
    """What somebody says of a row."""

    where: str
    labels: dict[str, Any]
    """The right values, by column of the objective."""
    row: Row
    """All that the table has."""


def read_corrections(
    rows: Iterable[tuple[str, Row]], names: Sequence[str], method: Objective[Any]
) -> dict[int, Correction]:
    """Return the corrections in a table with these columns, by the hash of the row that each is for; of equal ones the first.

    Each row of the table comes with its address. Rows of review.csv that nobody has filled in are left out.

    Raises:
        RecipeError: the objective's rows have no label.
        DataError: a correction does not say which row it is for, or what its label is, or two contradict each other.
    """
    kinds, label, found = method.columns(), label_columns(method.columns())[:1], dict[int, Correction]()
    given, inputs = find_columns(method, names)
    for where, row in rows:
        # beside a table with other columns, a review still says by itself that nobody has filled it in
        is_review = CORRECTED in names and any(_is_filled(row.get(name)) for name in (CORRECTED, ROW_HASH))
        filled = {name: row[name] for name in ([CORRECTED] if is_review else given) if _is_filled(row.get(name))}
        if not filled:
            continue
        key = _find_key(row, inputs, kinds, where)
        named = {label[0] if name == CORRECTED else name: value for name, value in filled.items()}
        own = {name: _parse(value, kinds[name], where) for name, value in named.items()}
        first = found.setdefault(key, Correction(where, own, row))
        if first.labels != own:
            what = f"says {own}, and {first.where} says {first.labels} of the same row"
            raise DataError(where, what, "keep one of the two")
    return found


def _find_key(row: Row, inputs: Collection[str], kinds: Mapping[str, ColumnKind], where: str) -> int:
    """Return the hash of the row that a correction is for: what it says, or that of its inputs."""
    if _is_filled(row.get(ROW_HASH)):
        return _parse_hash(row[ROW_HASH], where)
    if {*inputs} <= {*row}:
        return hash_but_labels(kinds, row)
    raise DataError(where, f"has no {ROW_HASH}", f"copy it from review.csv, or add {', '.join(inputs)}")


def is_wrong(one: Correction, kinds: Mapping[str, ColumnKind]) -> bool:
    """Whether a row of review.csv had another label than the right one: in the column of the label, if it has that, or as `given_label`."""
    (name, right), *_ = one.labels.items()
    given = one.row.get(name)
    given = (
        _parse(given, kinds[name], one.where)
        if _is_filled(given)
        else read_guarded_cell(str(one.row.get("given_label")))
    )
    given, right = (sorted(map(str, own)) if isinstance(own, list) else str(own).strip() for own in (given, right))
    return bool(given != right)


def _is_filled(value: Any) -> bool:
    return value is not None and bool(str(value).strip())


def _parse_hash(value: Any, where: str) -> int:
    if not re.fullmatch("h[0-9a-f]{16}", text := str(value).strip()):
        what = f"{value!r} is no {ROW_HASH}, an h with 16 digits from 0 to f"
        raise DataError(where, what, "copy it from review.csv")
    return int(text[1:], 16)


def _parse(value: Any, kind: str, where: str) -> Any:
    if kind == "number" and not re.fullmatch(NUMBER, str(value).strip()):
        raise DataError(where, f"{value!r} is no number", "write it with digits and a point, such as 3.5")
    if kind in ("labels", "numbers", "record", "records") and isinstance(value, str):
        try:
            return json.loads(read_guarded_cell(value))
        except ValueError:
            fix = """write JSON: a list of all labels, such as ["a", "b"], or of records"""
            raise DataError(where, f"{value!r} is no list", fix) from None
    return read_guarded_cell(value).strip() if isinstance(value, str) else value


def _write_shard(own: SplitRows, changes: Mapping[int, Mapping[str, Any]], path: Path) -> list[int]:
    """Write a shard with some values changed, by the place of a row in it; return the places that this changes, without a file if none."""
    if not changes:
        return []
    table, changed = own.table(), set[int]()
    for name in dict.fromkeys(name for change in changes.values() for name in change):
        kind, values = table.schema.field(name), values_of_column(table[name])
        new = [changes.get(place, {}).get(name, value) for place, value in enumerate(values)]
        column = _column_of_type(kind, new)
        pairs = enumerate(zip(values_of_column(column), values, strict=True))
        changed |= {place for place, (value, was) in pairs if str(value).strip() != str(was).strip()}
        table = table.set_column(table.schema.get_field_index(name), kind, column)
    if changed:
        rows = pc.subtract(table[ROW_ID], own.shard.first_row_id).cast(pa.int32())
        table = table.set_column(0, pa.field(ROW, pa.int32()), rows)
        pq.write_table(table, path, compression="zstd", row_group_size=_GROUP_ROWS)
    return sorted(changed)


def _column_of_type(kind: pa.Field, values: list[Any]) -> Any:
    """Return values as a column of the type that the source has; DataError if one of them is not of it."""
    if types.is_boolean(kind.type):
        values = [{"true": True, "false": False}.get(str(value).lower(), value) for value in values]
    try:
        column = table_of_values([{kind.name: value} for value in values], pa.schema([kind]))[kind.name]
        if types.is_integer(kind.type):  # decimals would be cut off in silence
            pa.array([value for value in values if isinstance(value, float)], pa.float64()).cast(kind.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        what = f"a label is not of the type that column `{kind.name}` has, {kind.type}: {error}"
        raise DataError("data.corrections", what, "write it as the other rows have it") from error
    return column

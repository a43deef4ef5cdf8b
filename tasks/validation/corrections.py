"""Labels that people have corrected (`data.corrections`) in place of those of the source; the raw rows stay as they are.

A correction is for all rows with the same values in the objective's other columns, such as the same text. It names them by these values, or by
a hash of them, `row_hash`, as the rows of review.csv have it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from params import DataError, RecipeError
from params.foundation.artifacts import CORRECTIONS, SPLITS, Artifacts, link_or_copy
from params.foundation.hashing import file_sha256
from tasks.shards.kept_work import ShardTask, ShardWorkers, hash_settings
from tasks.shards.split_rows import SplitRows, table_of_values, values_of_column
from tasks.validation.check_results import objective_identity
from tasks.validation.report import CorrectionsReport
from trainer.data.shards import ROW, ROW_ID, Shard
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import format_row_hash, hash_but_labels, label_columns

ROW_HASH: Final = "row_hash"
CORRECTED: Final = "corrected_label"
"""The column of review.csv that people fill in."""
DRAWN: Final = "random"
"""What its column `why` says of rows that were drawn at random."""
_GROUP_ROWS: Final = 8192
_ESCAPED: Final = re.compile(r"'(?=[=+\-@])")
"""What review.csv writes before a cell that a spreadsheet would take for a formula."""


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
    corrections, drawn = _read(raw / CORRECTIONS, method)
    wanted, changed, known = np.array(sorted(corrections), np.uint64), dict.fromkeys(SPLITS, 0), set[int]()
    for split in SPLITS:
        stored, shards = SplitRows(raw / split), list[Shard]()
        read = stored.reading(method.columns()).shards
        settings = {"work": "row hashes", "objective": objective_identity(method), "columns": str(stored.schema)}
        works = [ShardTask(own, hash_settings(shard=own.shard.sha256, **settings)) for own in read]
        hashes = workers.run(partial(hash_shard_rows, method), works, what=f"shards ({split} rows by hash)")
        (folder / split).mkdir(parents=True)
        for own, found in zip(stored.shards, hashes, strict=True):
            places = np.flatnonzero(np.isin(found, wanted)).tolist()
            known |= {*found[places].tolist()}
            target = folder / split / own.shard.name
            count = _write_shard(own, {place: corrections[int(found[place])] for place in places}, target)
            changed[split] += count
            shards.append(own.shard.model_copy(update={"sha256": file_sha256(target)}) if count else own.shard)
            if not count:
                link_or_copy(own.manifest.path(own.shard), target)
        stored.write_manifest(folder / split, shards)
    unmatched = [format_row_hash(one) for one in corrections if one not in known]
    return CorrectionsReport(
        corrections=len(corrections), changed=changed, unmatched=unmatched, drawn=len(drawn), drawn_wrong=sum(drawn)
    )


def hash_shard_rows(method: Objective[Any], rows: SplitRows) -> NDArray[np.uint64]:
    """Return the `row_hash` of each row of a shard, (N,)."""
    columns = method.columns()
    return np.array([hash_but_labels(columns, row) for row in rows.rows(list(columns))], np.uint64)


def find_columns(method: Objective[Any], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns of corrections with the right labels, and the objective's columns that tell which row is meant.

    Raises:
        RecipeError: the objective's rows have no label.
        DataError: there are no such columns.
    """
    labels = label_columns(method.columns())
    if not labels:
        what = "has no effect: rows of this objective have no label beside their texts"
        raise RecipeError.at("data.corrections", what, "remove it, and correct the source")
    inputs, given = [name for name in method.columns() if name not in labels], [one for one in labels if one in names]
    if CORRECTED in names:
        given = [CORRECTED]
        if len(labels) > 1:
            what = f"`{CORRECTED}` is one of {', '.join(labels)}"
            raise DataError("data.corrections", what, "give the corrections these columns instead")
    if not given or not (ROW_HASH in names or {*inputs} <= {*names}):
        what = f"needs {', '.join(labels)}, or {CORRECTED}; and {ROW_HASH}, or {', '.join(inputs)}; it has {', '.join(names)}"
        raise DataError("data.corrections", what, "add these columns")
    return given, inputs


def _read(folder: Path, method: Objective[Any]) -> tuple[dict[int, dict[str, Any]], list[bool]]:
    """Return the corrected values by the hash of a row, and of each that was drawn at random whether its label was wrong.

    Rows of review.csv that nobody has filled in are left out.
    """
    kinds, rows = method.columns(), SplitRows(folder)
    names, label = rows.schema.names, label_columns(method.columns())[:1]
    given, inputs = find_columns(method, names)
    found, first, drawn = dict[int, dict[str, Any]](), dict[int, int](), list[bool]()
    for row in rows.reading({name: kind for name, kind in kinds.items() if name in names}).rows():
        where = f"data.corrections, row {row[ROW_ID]}"
        own = {label[0] if name == CORRECTED else name: row[name] for name in given if _is_filled(row[name])}
        if not own:
            continue
        if _is_filled(row.get(ROW_HASH)):
            key = _parse_hash(row[ROW_HASH], where)
        elif {*inputs} <= {*names}:
            key = hash_but_labels(kinds, row)
        else:
            raise DataError(where, f"has no {ROW_HASH}", f"copy it from review.csv, or add {', '.join(inputs)}")
        own = {name: _parse(value, kinds[name], where) for name, value in own.items()}
        if found.setdefault(key, own) != own:
            what = f"says {own}, and row {first[key]} says {found[key]} of the same row"
            raise DataError(where, what, "keep one of the two")
        if key not in first and DRAWN in str(row.get("why")):
            drawn.append(str(row.get("given_label")).strip() != str(next(iter(own.values()))).strip())
        first.setdefault(key, row[ROW_ID])
    return found, drawn


def _is_filled(value: Any) -> bool:
    return value is not None and bool(str(value).strip())


def _parse_hash(value: Any, where: str) -> int:
    if not re.fullmatch("h[0-9a-f]{16}", str(value)):
        raise DataError(
            where, f"{value!r} is no {ROW_HASH}, an h with 16 digits from 0 to f", "copy it from review.csv"
        )
    return int(str(value)[1:], 16)


def _parse(value: Any, kind: str, where: str) -> Any:
    if kind in ("labels", "record", "records") and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            fix = """write JSON: a list of all labels, such as ["a", "b"], or of records"""
            raise DataError(where, f"{value!r} is no list", fix) from None
    return _ESCAPED.sub("", value, count=1).strip() if isinstance(value, str) else value


def _write_shard(own: SplitRows, changes: Mapping[int, Mapping[str, Any]], path: Path) -> int:
    """Write a shard with some values changed, by the place of a row in it; return how many rows that changes, without a file if none."""
    if not changes:
        return 0
    table, changed = own.table(), set[int]()
    for name in dict.fromkeys(name for change in changes.values() for name in change):
        field, values = table.schema.field(name), values_of_column(table[name])
        new = [changes.get(place, {}).get(name, value) for place, value in enumerate(values)]
        try:
            column = table_of_values([{name: value} for value in new], pa.schema([field]))[name]
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            what = f"a label is not of the type that column `{name}` has, {field.type}: {error}"
            raise DataError("data.corrections", what, "write it as the other rows have it") from error
        changed |= {place for place, value in enumerate(values_of_column(column)) if value != values[place]}
        table = table.set_column(table.schema.get_field_index(name), field, column)
    if changed:
        rows = pc.subtract(table[ROW_ID], own.shard.first_row_id).cast(pa.int32())
        table = table.set_column(0, pa.field(ROW, pa.int32()), rows)
        pq.write_table(table, path, compression="zstd", row_group_size=_GROUP_ROWS)
    return len(changed)

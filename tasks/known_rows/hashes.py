"""Which rows a model has learned from, by hashes of their content, and by hashes of their inputs, which other labels leave as they are.

A model has a file with a part of each hash: sorted and stored as differences, they take three bytes each.
Beside a million known rows, one new row in a million is taken for a known one. A release of an earlier version may have only the hashes of the content
of up to `MAX_KNOWN` rows, in the profile of its rows (tasks.known_rows.profile).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from params.foundation.artifacts import KNOWN_ROWS, PROFILE
from tasks.known_rows.profile import DataProfile, limit_memory
from tasks.known_rows.rows import INPUT_FORM, NOTHING_READ, READ_FORM, WRITTEN_FORM, ComparedColumns, hash_rows
from tasks.shards.kept_work import ShardTask, ShardWorkers, hash_settings
from tasks.shards.split_rows import SplitRows

_MAX_MEMORY: Final = 4 << 30
_LEFT_OUT: Final = np.uint64(24)
"""Bits of a hash that the file lacks."""
_COLUMN: Final = "hash"
Part = Literal["own", "start", "base"]
PARTS: Final[tuple[Part, ...]] = ("own", "start", "base")
"""Columns that say who has learned from a row: the training itself, what it started from, or its base. Files of earlier versions lack them."""
_CONTENT: Final = b"evergreen.content"
"""Key of the file's metadata: the columns whose values tell two rows apart."""
_INPUTS: Final = b"evergreen.inputs"
"""Key of the file's metadata: those of them that say what a model is given."""
_READING: Final = b"evergreen.reading"
"""Key of the file's metadata: how the objective has read its columns (`ComparedColumns.describe_reading`). Files of earlier versions lack it."""
_FORMS: Final = b"evergreen.forms"
"""Key of the file's metadata: the forms of the hashes (`tasks.known_rows.rows`). A file of an earlier version lacks it, and may have both."""


@dataclass(frozen=True)
class KnownHashes:
    """The rows that a model has learned from, by parts of the hashes of their content (`shorten_hashes`)."""

    hashes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(K,)."""
    is_written: bool = False
    """Whether some of them are of values as they are written, as releases of earlier versions have them."""
    has_inputs: bool = True
    """Whether there are hashes of the inputs of all these rows; releases of earlier versions have none."""
    is_read_alike: bool = True
    """Whether they are of rows that were read as those that are looked for; else not each of these is found among them."""

    @classmethod
    def of(cls, rows: SplitRows, columns: ComparedColumns, workers: ShardWorkers | None = None) -> KnownHashes:
        """Return all rows of a folder, by their content and by their inputs; with `workers`, their hashes are kept for the next run."""
        found = [np.zeros(0, np.int64)]
        for form in _forms_to_learn(columns):
            parts = hash_shards(rows, form, workers) if workers else [hash_rows(rows, form)]
            found += [shorten_hashes(hashes) for _, hashes in parts]
        return cls(np.unique(np.concatenate(found)))

    @classmethod
    def join(cls, parts: Iterable[KnownHashes]) -> KnownHashes:
        """Return the rows that are in any of the parts."""
        found = [cls(), *parts]
        hashes = np.concatenate([one.hashes for one in found])
        return cls(
            hashes,
            any(one.is_written for one in found),
            all(one.has_inputs for one in found),
            all(one.is_read_alike for one in found),
        )

    def has(self, *forms: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of N rows are among them, (N,), by their hashes in each form of `forms_of`, (N,) each."""
        found: NDArray[np.bool_] = np.any([np.isin(shorten_hashes(one), self.hashes) for one in forms], axis=0)
        return found

    def forms_of(self, columns: ComparedColumns) -> list[ComparedColumns]:
        """Return the columns in the forms in which the contents of rows are to be hashed."""
        return [columns, *([columns.in_form(WRITTEN_FORM)] if self.is_written else [])]


def _forms_to_learn(columns: ComparedColumns) -> list[ComparedColumns]:
    """Return the columns in the forms in which rows that are learned from are hashed; without targets both are one."""
    return [columns, *([columns.in_form(INPUT_FORM)] if columns.has_targets else [])]


def hash_shards(
    rows: SplitRows, columns: ComparedColumns, workers: ShardWorkers
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """Yield the row_ids and the content hashes of the N rows of each shard, (N,) each; they are kept for the next run."""
    settings = columns.settings(rows, columns.content)
    works = [ShardTask(own, hash_settings(work="content", shard=own.shard.sha256, **settings)) for own in rows.shards]
    found = workers.run(partial(_hash_shard, columns), works, what="shards (content)")
    for shard, (places, hashes) in zip(rows.manifest.shards, found, strict=True):
        yield places + shard.first_row_id, hashes


def _hash_shard(columns: ComparedColumns, rows: SplitRows) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    row_ids, hashes = hash_rows(rows, columns)
    return row_ids - rows.shard.first_row_id, hashes


def shorten_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the part of each hash by which a row is known, (N,)."""
    return (hashes >> _LEFT_OUT).astype(np.int64)


def write_hashes(
    parts: Mapping[Part, KnownHashes], columns: ComparedColumns, path: Path, said: Mapping[bytes, bytes] | None = None
) -> None:
    """Write parts of hashes, and who has learned from the rows; equal rows give equal bytes. `said` is further metadata."""
    every = KnownHashes.join(parts.values())
    hashes = np.unique(every.hashes)
    metadata = {
        _CONTENT: json.dumps(columns.content).encode(),
        _INPUTS: json.dumps(columns.inputs).encode(),
        _FORMS: json.dumps([READ_FORM, INPUT_FORM, *([WRITTEN_FORM] if every.is_written else [])]).encode(),
        _READING: columns.describe_reading().encode(),
        **(said or {}),
    }
    schema = pa.schema([(_COLUMN, pa.int64()), *((name, pa.bool_()) for name in PARTS)], metadata=metadata)
    is_of = [
        np.isin(hashes, parts[name].hashes) if name in parts else np.zeros(len(hashes), np.bool_) for name in PARTS
    ]
    encoding: dict[str, str] = {_COLUMN: "DELTA_BINARY_PACKED", **dict.fromkeys(PARTS, "RLE")}
    table = pa.table([hashes, *is_of], schema=schema)
    pq.write_table(table, path, compression="none", use_dictionary=False, column_encoding=encoding)


def find_known_rows(
    rows: SplitRows, columns: ComparedColumns, known: KnownHashes
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the row_ids of all rows, (N,), and which of them, or rows with the same input, are among the `known` ones, (N,)."""
    whole, *inputs = _forms_to_learn(columns)
    found = [hash_rows(rows, form) for form in (*known.forms_of(whole), *inputs)]
    return found[0][0], known.has(*(hashes for _, hashes in found))


def find_known_rows_of_shards(
    rows: SplitRows, columns: ComparedColumns, known: KnownHashes, workers: ShardWorkers
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the same of many rows by their whole content: one with another label is new. Their hashes are kept for the next run."""
    ids, is_known = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    forms = (hash_shards(rows, form, workers) for form in known.forms_of(columns))
    for found in zip(*forms, strict=True):
        ids.append(found[0][0])
        is_known.append(known.has(*(hashes for _, hashes in found)))
    return np.concatenate(ids), np.concatenate(is_known)


def read_hashes(release: Path, columns: ComparedColumns, *, needs_all: bool, by_input: bool = False) -> KnownHashes:
    """Return the rows that a release has learned from, whose files are in a folder, for `find_known_rows`.

    `by_input`: it may have learned other labels, of a column with another name, if it has read the same columns.

    Raises:
        ValueError: it names none or, with `needs_all`, not all of them; the message says why.
    """
    file, profile = release / KNOWN_ROWS, release / PROFILE
    if file.exists():
        return KnownHashes.join(read_hashes_of_file(file, columns, by_input=by_input).values())
    if not profile.exists():
        raise ValueError("it does not say which rows it has learned from")
    known = DataProfile.load(profile.read_bytes())
    if needs_all and not known.is_whole:
        raise ValueError(f"its profile has only {len(known.known):,} of its {known.rows:,} rows")
    _check_columns(columns, known.content)
    return KnownHashes(shorten_hashes(known.known), known.form == WRITTEN_FORM, has_inputs=False)


def read_hashes_of_file(file: Path, columns: ComparedColumns, *, by_input: bool = False) -> dict[Part, KnownHashes]:
    """Return the rows in a file of `write_hashes`, by who has learned from them; ValueError as `read_hashes`."""
    try:
        with limit_memory(_MAX_MEMORY):
            table = pq.read_table(file)
            metadata, hashes = table.schema.metadata, table[_COLUMN].to_numpy()
            is_of = {name: table[name].to_numpy() for name in PARTS if name in table.column_names}
            content, forms = json.loads(metadata[_CONTENT]), json.loads(metadata.get(_FORMS, b"[1]"))
            inputs = json.loads(metadata.get(_INPUTS, b"null"))
            reading = metadata.get(_READING, NOTHING_READ.encode()).decode()
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise ValueError(f"its list of rows is damaged: {type(error).__name__}") from error
    # what has learned no label has not learned what is asked for
    has_same_inputs = by_input and inputs == columns.inputs != content
    if not has_same_inputs:
        _check_columns(columns, content)
    said = {"is_written": WRITTEN_FORM in forms, "has_inputs": INPUT_FORM in forms}
    said["is_read_alike"] = reading in (NOTHING_READ, columns.describe_reading())
    if not is_of:
        return {"own": KnownHashes(hashes, **said)}
    return {name: KnownHashes(hashes[chosen], **said) for name, chosen in is_of.items()}


def read_metadata(file: Path) -> Mapping[bytes, bytes]:
    """Return the metadata of a file of `write_hashes`; ValueError if it is damaged."""
    try:
        return pq.read_schema(file).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"its list of rows is damaged: {type(error).__name__}") from error


def _check_columns(columns: ComparedColumns, content: Sequence[str]) -> None:
    if content != columns.content:
        raise ValueError(f"it learned from other columns: {', '.join(map(str, content))}")

"""A split in shards: a folder of files, and a manifest that lists them.

    <split>/_manifest.json      each shard's name, number of rows, hash, and the `row_id` at which its part of the source begins
    <split>/00000.parquet       rows, or as .arrow, sequences of tokens

A shard does not hold the `row_id` of its rows but `_row`, their place in the shard's part of the source: `row_id` is
`first_row_id + _row`. So a shard stays as it is when rows come to, or go from, other parts of the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pydantic

from params import DataError
from params.foundation.hashing import file_sha256

ROW_ID: Final = "row_id"
MANIFEST: Final = "_manifest.json"
ROW: Final = "_row"
"""Column of a shard: the place of a row in the part of the source that the shard is of."""


class Shard(pydantic.BaseModel):
    """A file with some rows of a split."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")
    name: str
    """Name of the file."""
    rows: int
    """Number of rows, or of sequences."""
    first_row_id: int
    """The `row_id` of the first row of the shard's part of the source, whichever split that row is in."""
    sha256: str
    """Hash of the file."""
    source: str | None = None
    """Which of several sources its rows are from."""
    weight: float = 1.0
    """How often an epoch learns from each of them."""


class _Content(pydantic.BaseModel):
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Manifest:
    """The shards of a split, in order."""

    folder: Path
    shards: tuple[Shard, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the manifest in a folder; DataError if it is missing or damaged."""
        path = folder / MANIFEST
        try:
            return cls(folder, _Content.model_validate_json(path.read_bytes()).shards)
        except FileNotFoundError:
            raise DataError(str(folder), "does not exist", "run the stage that writes it first") from None
        except (OSError, ValueError) as error:
            raise DataError(str(path), f"cannot be read: {error}", "run the stage that writes it again") from None

    @classmethod
    def write(cls, folder: Path, shards: list[Shard]) -> Self:
        text = _Content(shards=tuple(shards)).model_dump_json(indent=1, exclude_defaults=True)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
        return cls(folder, tuple(shards))

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def path(self, shard: Shard) -> Path:
        return self.folder / shard.name


def folder_sha256(folder: Path, known: Sequence[Shard] = ()) -> str:
    """Return SHA-256 over the files of a folder: the lines `<name> <sha256>` of all of them, those in subfolders too, in order of name.

    The files of `known` shards are not read, because they were just written.
    """
    hashes = {shard.name: shard.sha256 for shard in known}
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    lines = (f"{name} {hashes.get(name) or file_sha256(path)}\n" for name, path in paths.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def rows_by_weight(weights: Sequence[tuple[int, float]]) -> dict[float, int]:
    """Return how many rows have each weight; `weights` are pairs of a number of rows and their weight."""
    return {
        weight: sum(rows for rows, own in weights if own == weight) for weight in sorted({own for _, own in weights})
    }


def share_of_epoch(rows: int, weight: float) -> tuple[int, int]:
    """Return how often an epoch has all rows of a weight, and how many of them once more: at least one of all, if there are some."""
    return int(weight), max(round(rows * (weight - int(weight))), weight < 1 <= rows)


def rows_per_epoch(weights: Sequence[tuple[int, float]]) -> int:
    counts = ((rows, *share_of_epoch(rows, weight)) for weight, rows in rows_by_weight(weights).items())
    return sum(rows * whole + part for rows, whole, part in counts)

"""Rows from files on this machine, by pattern; a pattern's files are read in the order of their names."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from params import DataError
from params.artifacts import SPLITS
from params.hashing import file_sha256
from params.schema import Files
from tasks.ingestion.batches import Batches
from tasks.ingestion.formats import JSON_SUFFIXES, SUFFIXES, TextUnit, read_file, reading


class FileSource:
    """The files that match one pattern for each split.

    Args:
        patterns: split -> path or glob below `folder`.
        folder: where relative patterns start.
        text_unit: what one row of a .txt file is.
        place: what messages call `folder`.

    Raises:
        DataError: a pattern matches no file, or one whose suffix says nothing.
    """

    def __init__(
        self, patterns: Mapping[str, str | None], folder: Path, text_unit: TextUnit = "paragraph", place: str = ""
    ) -> None:
        self._folder = folder
        self._text_unit = text_unit
        self._place = place or str(folder.absolute())
        self._names = {split: self._match(split, p) for split in SPLITS if (p := patterns.get(split)) is not None}
        self._agreed: tuple[str, frozenset[str]] | None = None

    @classmethod
    def from_recipe(cls, source: Files, root: Path) -> FileSource:
        """The source that the recipe's section describes."""
        return cls(source.model_dump(include=set(SPLITS)), root, source.text_unit)

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self._names)

    @cached_property
    def revision(self) -> str:
        """SHA-256 over names and contents of all files."""
        listing = hashlib.sha256()
        for name in sorted({name for names in self._names.values() for name in names}):
            path = self._folder / name
            with reading(path, name):
                shown = path.name if Path(name).is_absolute() else name
                listing.update(f"{shown}\0{file_sha256(path)}\n".encode())
        return f"sha256:{listing.hexdigest()}"

    def batches(self, split: str) -> Batches:
        for name in self._names[split]:
            columns: set[str] = set()
            for batch in read_file(self._folder / name, name, self._text_unit):
                if not columns and self._agreed:
                    self._check_columns(name, frozenset(batch.rows.schema.names), *self._agreed)
                columns.update(batch.rows.schema.names)
                yield batch
            if columns and not self._agreed:
                self._agreed = name, frozenset(columns)

    def _check_columns(self, name: str, columns: frozenset[str], first: str, expected: frozenset[str]) -> None:
        """Two files of JSON lines may differ, as two lines may: what a row lacks is null."""
        if columns == expected or {Path(name).suffix.lower(), Path(first).suffix.lower()} <= set(JSON_SUFFIXES):
            return
        differences = [
            f"{verb} {', '.join(f'`{column}`' for column in sorted(found))}"
            for verb, found in (("lacks", expected - columns), ("adds", columns - expected))
            if found
        ]
        what = f"has other columns than {first}: it {' and '.join(differences)}"
        raise DataError(name, what, "give all files of the recipe the same columns")

    def _match(self, split: str, pattern: str) -> list[str]:
        if (self._folder / pattern).is_file():
            names = [pattern]
        else:
            found = glob.glob(pattern, root_dir=self._folder, recursive=True)  # noqa: PTH207 - takes absolute paths too
            names = sorted(name for name in found if (self._folder / name).is_file())
        key = f"data.source.{split}"
        if not names:
            if (self._folder / pattern).is_dir():
                raise DataError.at(
                    key, f"{pattern}: is a folder", f"write a pattern of files, for example `{pattern}/*.parquet`"
                )
            what = f"{pattern}: no file matches in {self._place}"
            raise DataError.at(key, what, "check the path; `**` matches folders in between")
        for name in names:
            if Path(name).suffix.lower() not in SUFFIXES:
                what = f"{pattern}: {name} is of a kind that cannot be read"
                raise DataError.at(key, what, f"use one of {', '.join(SUFFIXES)}")
        return names

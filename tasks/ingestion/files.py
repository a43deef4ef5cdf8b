"""Rows from local files that match a pattern, read in the order of their names."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from params import DataError
from params.foundation.hashing import file_sha256
from tasks.ingestion import formats
from tasks.ingestion.batches import Batches, is_utf8_encodable
from tasks.ingestion.encodings import COMPRESSIONS, translate_read_errors
from tasks.ingestion.file_index import FileRowIndex, index_file
from tasks.ingestion.formats.base import TextUnit, WantedRows
from tasks.ingestion.links import refuse_linked_folders, refuse_links_out_of_folder


class FileSource:
    """The files that match a pattern, one pattern for each split.

    Relative patterns start from `folder`, which errors call `place`. Links may lead to files `within` another folder.

    Raises:
        DataError: a pattern matches no file, or a file of an unknown format.
    """

    def __init__(
        self,
        patterns: Mapping[str, str],
        folder: Path,
        text_unit: TextUnit = "paragraph",
        *,
        place: str = "",
        memory: Callable[[str], Path | None] = lambda _: None,
        within: Path | None = None,
    ) -> None:
        self._folder = folder
        self._text_unit = text_unit
        self._place = place or str(folder.absolute())
        self._within = within
        self._names = {split: self._match(split, pattern) for split, pattern in patterns.items()}
        self._indexes: dict[str, FileRowIndex] = {}
        self._memory = memory

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self._names)

    @cached_property
    def revision(self) -> str:
        """SHA-256 of the names of all files and of hashes of their contents."""
        listing = hashlib.sha256()
        for name in sorted({name for names in self._names.values() for name in names}):
            path = self._folder / name
            with translate_read_errors(path, name):
                shown = path.name if Path(name).is_absolute() else name
                sha256 = self._index(name).sha256 if formats.can_be_cut(path, name) else file_sha256(path)
                package = formats.format_of(path).package
                listing.update(f"{shown}\0{sha256}{package and f' read by {package}'}\n".encode())
        return f"sha256:{listing.hexdigest()}"

    def batches(self, split: str) -> Batches:
        self._check_columns(split)
        for name in self._names[split]:
            wanted = WantedRows(text_unit=self._text_unit)
            yield from formats.read_rows_of_file(self._folder / name, name, wanted)

    def indexes(self, split: str) -> list[FileRowIndex] | None:
        self._check_columns(split)
        for name in self._names[split]:
            with translate_read_errors(self._folder / name, name):
                if not formats.can_be_cut(self._folder / name, name):
                    return None
        return [self._index(name) for name in self._names[split]]

    def _index(self, name: str) -> FileRowIndex:
        if name not in self._indexes:
            self._indexes[name] = index_file(self._folder / name, name, self._memory(f"index of {name}"))
        return self._indexes[name]

    def _check_columns(self, split: str) -> None:
        """Refuse files whose columns are not those of the first file; in JSON lines, a missing key is null."""
        if not self._columns:
            return
        first, expected = next(iter(self._columns.items()))
        for name in self._names[split]:
            columns = self._columns.get(name, expected)
            differences = [
                f"{verb} {', '.join(f'`{column}`' for column in sorted(found))}"
                for verb, found in (("lacks", expected - columns), ("adds", columns - expected))
                if found
            ]
            if differences:
                what = f"its columns differ from those of {first}: it {' and '.join(differences)}"
                raise DataError(name, what, "give all files of data.source the same columns")

    @cached_property
    def _columns(self) -> dict[str, set[str]]:
        """The columns of each file, in order; without files such as JSON lines, whose columns only their rows name."""
        names = dict.fromkeys(name for names in self._names.values() for name in names)
        found = {name: formats.read_file_columns(self._folder / name, name) for name in names}
        return {name: columns for name, columns in found.items() if columns is not None}

    def _match(self, split: str, pattern: str) -> list[str]:
        key, found, names = f"data.source.{split}", [pattern], list[str]()
        if not (self._folder / pattern).is_file():
            refuse_linked_folders(self._folder, pattern, key)
            found = glob.glob(pattern, root_dir=self._folder, recursive=True)  # noqa: PTH207 - takes absolute paths too
        for name in sorted(found):
            path = self._folder / name
            if path.is_file():
                names.append(name)
            elif not path.is_dir():
                kind = "a link to a file that does not exist" if path.is_symlink() else "no regular file"
                raise DataError.at(key, f"{name!a} is {kind}", "remove it, or correct the path")
        if not names:
            if (self._folder / pattern).is_dir():
                fix = f"write a pattern that matches files, for example `{pattern}/*.parquet`"
                raise DataError.at(key, f"{pattern}: is a folder", fix)
            what = f"{pattern}: no file matches" + ("" if Path(pattern).is_absolute() else f" in {self._place}")
            raise DataError.at(key, what, "check the path; `**` stands for any number of folders")
        refuse_links_out_of_folder(self._folder, pattern, names, key, self._within)
        for name in names:
            if not is_utf8_encodable(name):
                raise DataError.at(key, f"{pattern}: the file name {name!a} is not UTF-8", "rename the file")
            _refuse_other_format(key, pattern, name)
        return names


def _refuse_other_format(key: str, pattern: str, name: str) -> None:
    own_format = formats.find_format(name)
    if own_format is None:
        what = f"{pattern}: {name} has a format that cannot be read"
        raise DataError.at(key, what, f"use files that end in {', '.join(formats.readable_suffixes())}")
    if not own_format.is_text and Path(name).suffix.lower() in COMPRESSIONS:
        what = f"{pattern}: {name} is compressed {own_format.title}"
        raise DataError.at(key, what, own_format.decompress_fix)

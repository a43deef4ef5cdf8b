"""What a format of files is: one object that says all that readers of files need to know of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

from tasks.ingestion.batches import AddressedRows, Batches, to_batches
from tasks.ingestion.encodings import START, TextFilePosition

TextUnit = Literal["line", "paragraph", "file"]
PLACE_ROWS: Final = 512
"""Rows from one place to the next, about."""


class Layout(Protocol):
    """What a look at a whole file found out that reading any of its rows needs, such as the types of columns."""

    @property
    def key(self) -> object:
        """All of it, in a form whose `repr` is always the same: rows that were read with another layout are read anew."""


@dataclass(frozen=True)
class WantedRows:
    """Which rows of a file are read, and how; by default all."""

    first: int = 0
    count: int | None = None
    """How many; by default all that follow."""
    begin: TextFilePosition = START
    """Where to begin to read, at the first row or before it."""
    layout: Any = None
    """The file's `Layout`, if it is known."""
    text_unit: TextUnit = "paragraph"
    """What a row of a file without columns is."""

    def slice_of(self, rows: AddressedRows) -> AddressedRows:
        """Yield those of `rows`, of which the first is the one at `begin`."""
        skipped = self.first - self.begin.row
        yield from islice(rows, skipped, None if self.count is None else skipped + self.count)


class RowPlaces(NamedTuple):
    """Where the rows of a file are."""

    places: Sequence[TextFilePosition]
    """Places at which reading can begin, the first row's first; bytes from one place to the next do not depend on others."""
    rows: int
    layout: Layout | None = None
    ends_with_footer: bool = False
    """Whether the last place is that of a footer, which reading any row needs."""


class Format:
    """A format of files. One with `suffixes` and `rows` alone can be read; what else is here makes it faster, or errors better.

    Methods are called with the path of a file, and the name that errors call it. Who calls them translates errors of the
    operating system; all else that is wrong with a file is a DataError whose address is the name, and the line or row.
    """

    suffixes: ClassVar[Sequence[str]]
    """How names of its files end, in lower case: `.csv`."""
    is_text: ClassVar[bool] = False
    """Whether its files are text: then they may be compressed, as `open_as_utf8` reads them."""
    title: ClassVar[str]
    """What people call it."""
    decompress_fix: ClassVar[str] = "decompress it"
    """What to do with a compressed file, if the format is no text."""
    package: str = ""
    """The installed package that brings the format, with its version; empty if it is one of Evergreen's own."""
    continues: ClassVar[bool] = False
    """Whether a look for places can go on behind known ones, because rows are only appended."""

    def rows(self, path: Path, name: str, wanted: WantedRows) -> AddressedRows:
        """Yield the address of each row, such as `data/a.csv:17`, and the row as a mapping, from `wanted.begin` on."""
        raise NotImplementedError

    def batches(self, path: Path, name: str, wanted: WantedRows) -> Batches:
        """Yield the wanted rows; a format that has them as Arrow does this instead of `rows`."""
        with contextlib.closing(self.rows(path, name, wanted)) as rows:
            yield from to_batches(wanted.slice_of(rows))

    def columns(self, path: Path, name: str) -> set[str] | None:
        """Return the columns that a file says to have, by a look at its beginning; None if only its rows name theirs."""
        return None

    def can_be_cut(self, path: Path, name: str) -> bool:
        """Whether a file can be read from any row on, so that several processes read parts of it."""
        return False

    def find_places(self, path: Path, name: str, known: Sequence[TextFilePosition] = ()) -> RowPlaces:
        """Return where the rows of a file are that can be cut; `known` are the first places, if the format `continues`."""
        raise NotImplementedError

    def refuse_misreading(self, path: Path, name: str) -> None:
        """Raise a DataError if the beginning of a file that nobody has used yet shows that it would be misread."""

    def guess_options(self, paths: Sequence[Path]) -> tuple[Mapping[str, str], Sequence[str]]:
        """Return keys for `data.source` that files need, such as `text_unit`, and why, for people."""
        return {}, ()

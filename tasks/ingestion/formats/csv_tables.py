"""Tables: CSV files, which have commas, semicolons, tabs or vertical bars, as their header says, and `.tsv` files, which have tabs.

Quotes can be read in two ways:

- around cells, as RFC 4180 has them: a cell in quotes may hold delimiters and line ends, and has its own quotes twice;
- as characters like others: each line is a row.

Quotes of a table with tabs are characters if each line has as many cells as the header, unless all of them are written as programs write
CSV. In other tables they are around cells. Where both ways give a table, but other rows, the table is refused.
A header with quotes around a cell says that they are around cells.
"""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any, Final, NamedTuple

from params import DataError
from tasks.ingestion.batches import AddressedRows, Batches, to_batches
from tasks.ingestion.encodings import (
    START,
    TextFilePosition,
    convert_command,
    format_suffix,
    is_plain_text,
    open_as_utf8,
    translate_read_errors,
)
from tasks.ingestion.formats.base import PLACE_ROWS, Format, RowPlaces, WantedRows
from tasks.ingestion.row_limit import MAX_ROW_BYTES, check_number_of_columns, read_bounded_line, too_large_error

logger = logging.getLogger(__name__)
DELIMITERS: Final = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""What can separate the columns of a CSV file."""
_INTEGER: Final = re.compile(r"0|-?[1-9]\d{0,17}")  # below 2**63; `007` is text, not a number, and so is `-0`
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?([eE][+-]?\d{1,2})?")  # integers up to 15 digits are exact
_WRITTEN_CELL: Final = re.compile(r'("(?:[^"]++|"")*+"|[^"\t]*+)(\t|\Z)')
"""A cell of a table with tabs as programs write CSV, and what ends it."""
_QUOTED: Final = re.compile('"[^"\\t\\r\\n]+"')
"""A cell in quotes that does not need them."""
_HEAD_ROWS: Final = 2000
CsvColumns = Mapping[str, Callable[[str], Any]]
"""The columns of a table, each with the type of its values: `int`, `float` or `str`."""


class TableLayout(NamedTuple):
    """How a table is read."""

    columns: CsvColumns
    delimiter: str
    has_quoted_cells: bool
    """Whether quotes are around cells; else they are characters like others."""

    @property
    def key(self) -> object:
        return [(name, kind.__name__) for name, kind in self.columns.items()], self.delimiter, self.has_quoted_cells


class CsvTables(Format):
    """CSV files, and tables with tabs; columns have types."""

    suffixes = (".csv", ".tsv")
    title = "CSV"
    is_text = True

    def batches(self, path: Path, name: str, wanted: WantedRows) -> Batches:
        layout: Any = wanted.layout or self.find_places(path, name).layout
        numbers = [column for column, kind in layout.columns.items() if kind is float]
        with open_as_utf8(path, name, wanted.begin) as file:
            found = wanted.slice_of(read_rows(file, name, layout, wanted.begin))
            yield from to_batches(found, written_numbers=numbers)

    def columns(self, path: Path, name: str) -> set[str]:
        return set(read_column_names(path, name))

    def can_be_cut(self, path: Path, name: str) -> bool:
        return is_plain_text(path)

    def find_places(self, path: Path, name: str, known: Sequence[TextFilePosition] = ()) -> RowPlaces:
        layout, places, rows = index_table(path, name)
        return RowPlaces(places, rows, layout)

    def refuse_misreading(self, path: Path, name: str) -> None:
        with translate_read_errors(path, name):
            _refuse_missing_header(path, name)


def is_table(path: PurePath) -> bool:
    """Whether a file is a table by its name."""
    return format_suffix(path) in CsvTables.suffixes


def read_cells(path: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address and the cells of each row of a table, by column, as they are written.

    Raises:
        DataError: the file is no table, empty, unreadable or malformed.
    """
    if not is_table(path):
        raise DataError(name, "is no CSV file", "save the table as CSV, in UTF-8")
    with (
        translate_read_errors(path, name),
        open_table(path, name, is_quoted=has_quoted_cells(path, name)) as (_, records),
    ):
        header = _read_header(records, path, name)
        yield from ((where, dict(zip(header, cells, strict=True))) for where, cells in records)


def read_column_names(path: Path, name: str) -> list[str]:
    """Return the columns of a table, of which only the beginning is read if its first line has no quotes."""
    is_quoted = b'"' not in _read_first_line(path, name) or has_quoted_cells(path, name)
    with open_table(path, name, is_quoted=is_quoted) as (_, records):
        return _read_header(records, path, name)


def index_table(path: Path, name: str) -> tuple[TableLayout, list[TextFilePosition], int]:
    """Read a table, and return its layout, the places of about every `PLACE_ROWS`th row from the first on, and the number of rows.

    Cells have no types: a column is numeric only if all of its cells are numbers.

    Raises:
        DataError: the table is malformed, or its quotes can be read in both ways.
    """
    is_quoted, delimiter = has_quoted_cells(path, name), find_delimiter(path, name)
    with open_table(path, name, is_quoted=is_quoted) as (lines, records):
        header = _read_header(records, path, name)
        types, places, rows, long_rows, first_long = _CellTypes(len(header)), [START], 0, 0, ""
        try:
            for where, cells in records:
                types.look_at(cells)
                rows += 1
                if any("\n" in cell or "\r" in cell for cell in cells):
                    long_rows, first_long = long_rows + 1, first_long or where
                if rows - places[-1].row >= PLACE_ROWS and lines.is_between:
                    places.append(TextFilePosition(rows, lines.offset, lines.line))
        except DataError as error:
            raise error.replace(fix=f"{error.fix}{_other_way(path, name)}") from error
    if long_rows and len(header) > 1:
        refuse_quotes_of_both_kinds(path, name, first_long)
    if long_rows:
        message = "%s: %d of %d rows hold line ends, as they have quotes around them; the first is %s"
        logger.info(message, name, long_rows, rows, first_long)
    columns = {name: types.of(column) for column, name in enumerate(header)}
    return TableLayout(columns, delimiter, is_quoted), places, rows


class _CellTypes:
    """Which columns have nothing but integers, or numbers, in all cells that were looked at and are not empty."""

    def __init__(self, width: int) -> None:
        self._integers = set(range(width))
        self._numbers = set(range(width))

    def look_at(self, cells: Sequence[str]) -> None:
        self._integers -= {i for i in self._integers if cells[i] and not _INTEGER.fullmatch(cells[i])}
        self._numbers -= {i for i in self._numbers if cells[i] and not _NUMBER.fullmatch(cells[i])}

    def of(self, column: int) -> Callable[[str], Any]:
        if column in self._integers:
            return int
        return float if column in self._numbers else str


def read_rows(file: IO[bytes], name: str, layout: TableLayout, begin: TextFilePosition) -> AddressedRows:
    """Yield the rows of a table that is open at a place."""
    columns = layout.columns
    records = _read_records(
        _Lines(file, name, begin), layout.delimiter, len(columns), is_quoted=layout.has_quoted_cells
    )
    for where, cells in islice(records, 0 if begin.offset else 1, None):  # the header is no row
        # An empty cell is null in a numeric column, and empty text elsewhere. Numbers with decimals stay as they are written.
        values = (
            (int(cell) if kind is int else cell) if cell or kind is str else None
            for kind, cell in zip(columns.values(), cells, strict=True)
        )
        yield where, dict(zip(columns, values, strict=True))


@contextlib.contextmanager
def open_table(path: Path, name: str, *, is_quoted: bool) -> Iterator[tuple[_Lines, Iterator[tuple[str, list[str]]]]]:
    """Open a table, and give its lines, and the address and the cells of its records, the header first."""
    with open_as_utf8(path, name) as file:
        lines = _Lines(file, name, START)
        yield lines, _read_records(lines, find_delimiter(path, name), is_quoted=is_quoted)


def find_delimiter(path: Path, name: str) -> str:
    """Return what separates the columns of a table: in the first line of a CSV file a comma, if there is one or nothing else."""
    if format_suffix(path) == ".tsv":
        return "\t"
    first = re.sub(rb'"[^"]*"', b"", _read_first_line(path, name))
    return next((one for one in DELIMITERS if one.encode() in first), ",")


def has_quoted_cells(path: Path, name: str, *, has_header: bool = True) -> bool:
    """Whether quotes of a table are around cells; else they are characters like others."""
    if find_delimiter(path, name) != "\t" or find_line_that_is_no_row(path, name, has_header=has_header):
        return True
    return _is_written_as_csv(path, name, has_header=has_header)


def refuse_quotes_of_both_kinds(path: Path, name: str, where: str, *, has_header: bool = True) -> None:
    """Refuse a table whose quotes around cells make one row of several lines at `where`, if each of its lines could be a row."""
    if find_line_that_is_no_row(path, name, has_header=has_header):
        return
    what = "quotes around cells make one row of several lines here, and without them each line has as many cells as the first"
    around, characters = (convert_command(path, ".csv", f"--quotes {own}") for own in ("around-cells", "characters"))
    raise DataError(where, what, f"if each line is a row: {characters}; if the rows hold line ends: {around}")


def find_line_that_is_no_row(path: Path, name: str, *, has_header: bool = True) -> str:
    """Return why quotes of a table cannot be characters: a line with too few or too many cells, or a header with quotes around a cell."""
    delimiter, width = find_delimiter(path, name), 0
    with open_as_utf8(path, name) as file:
        lines = _Lines(file, name, START)
        for line in lines:
            lines.begin_record()
            if not line.strip("\r\n"):
                continue
            cells = line.count(delimiter) + 1
            if has_header and not width and any(_QUOTED.fullmatch(one) for one in line.strip("\r\n").split(delimiter)):
                return "its header has quotes around a cell"
            width = width or cells
            if cells != width:
                return f"line {lines.line - 1} has {cells} cells, and the first has {width}"
    return ""


def _read_first_line(path: Path, name: str) -> bytes:
    with open_as_utf8(path, name) as file:
        return read_bounded_line(file, f"{name}:1").partition(b"\r")[0]


def _is_written_as_csv(path: Path, name: str, *, has_header: bool) -> bool:
    """Whether all quotes of a table with tabs are where a program puts them that writes CSV.

    They are around whole cells, and doubled inside of them. Such a program has them around a cell that needs them, or is empty, or
    around all texts of a column.
    """
    without_need, without_quotes = set[int](), set[int]()
    record, size, quotes, is_header = list[str](), 0, 0, has_header
    with open_as_utf8(path, name) as file:
        lines = _Lines(file, name, START)
        for line in lines:
            lines.begin_record()
            record.append(line)
            size, quotes = size + len(line), quotes + line.count('"')
            if quotes % 2 and size <= MAX_ROW_BYTES:
                continue
            cells = _split_written_record("".join(record).rstrip("\r\n"))
            if cells is None:
                return False
            record, size = [], 0
            for column, cell in enumerate([] if is_header else cells):
                if re.fullmatch('"[^"\t\r\n]+"', cell):
                    without_need.add(column)
                elif cell and not cell.startswith('"') and not _NUMBER.fullmatch(cell):
                    without_quotes.add(column)
            is_header = False
    return not record and not without_need & without_quotes


def _split_written_record(record: str) -> list[str] | None:
    """Return the cells of a record with their quotes; None if no program that writes CSV writes it."""
    cells, place = list[str](), 0
    while found := _WRITTEN_CELL.match(record, place):
        cells.append(found[1])
        place = found.end()
        if not found[2]:
            return cells
    return None


def _other_way(path: Path, name: str) -> str:
    """Return the end of a fix for a table that is malformed if quotes are around cells: what to do if they are characters."""
    problem, otherwise = find_line_that_is_no_row(path, name), "; or, if quotes are characters of the texts, "
    if not problem:
        return f"{otherwise}{convert_command(path, '.csv', '--quotes characters')}"
    return f"{otherwise}correct what is no row then: {problem}" if find_delimiter(path, name) == "\t" else ""


def _read_header(records: Iterator[tuple[str, list[str]]], path: Path, name: str) -> list[str]:
    where, header = next(records, (name, []))
    check_number_of_columns(len(header), where)
    refuse_separator_line(header, where)
    is_first = header[:1] == [""] and all(name.strip() for name in header[1:])
    if not all(name.strip() for name in header):
        what = "a column of the header has no name"
        what = "its first column has no name: pandas writes its index like that" if is_first else what
        raise DataError(where, what, f"give every column its own name, as this does: {convert_command(path, '.csv')}")
    if twice := next((name for name, count in Counter(header).items() if count > 1), None):
        what = f"the header has column `{twice}` twice"
        raise DataError(where, what, "give every column its own name")
    return header


def refuse_separator_line(header: list[str], where: str) -> None:
    """Refuse a table whose first line is `sep=;`, by which Excel is told what separates cells: it is neither a header nor a row."""
    if header == ["sep=", ""]:
        what = "its first line tells Excel what separates cells, and is no header"
        raise DataError(where, what, "remove that line: what separates cells is found in the header")


def _refuse_missing_header(path: Path, name: str) -> None:
    """Refuse a table whose first row has values where names should be; the error has the command that adds names."""
    records = list[list[str]]()
    is_quoted = has_quoted_cells(path, name)
    with contextlib.suppress(DataError), open_table(path, name, is_quoted=is_quoted) as (_, found):
        for _, cells in islice(found, _HEAD_ROWS):  # the reader says where one is malformed
            records.append(cells)
    for place, cell in enumerate(records[0] if len(records) > 1 else ()):
        if why := _why_no_name(cell, {cells[place] for cells in records[1:]}):
            names = ",".join(f"column{i}" for i in range(1, len(records[0]) + 1))
            fix = f"with names of your own: {convert_command(path, '.csv', f'--header {names}')}"
            raise DataError(name, f"has no header: {why}", fix)


def _why_no_name(cell: str, values: Collection[str]) -> str:
    """Return why a cell of the first line cannot be the name of the column that has these values; empty if it can."""
    if re.fullmatch(r"-?\d+(\.\d+)?", cell.strip()):
        return f"its first line has the number {cell!r} where a name should be"
    if cell and cell in values:
        return f"{cell!r} in its first line is a value of the same column, too"
    if len(cell) > 60 or (len(cell.split()) > 3 and cell.strip()[-1] in ".?!"):
        return f"its first line has the text {cell[:60]!r} where a name should be"
    return ""


class _Lines:
    """The lines of a file of text that is open at a place. They end as in a file opened with `newline=""`."""

    def __init__(self, file: IO[bytes], name: str, begin: TextFilePosition) -> None:
        self._file, self._name, self.offset, self.line = file, name, begin.offset, begin.line
        self._rest: list[str] = []
        self.ends_with_return = False
        """Whether the last line did, without a line feed."""
        self._record, self._where = begin.offset, f"{name}:{begin.line}"

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self._rest:
            raw = read_bounded_line(self._file, self._where)
            if self.offset - self._record > MAX_ROW_BYTES:
                raise too_large_error(self._where)
            text = raw.decode("utf-8" if self.offset else "utf-8-sig")
            self.offset += len(raw)
            self._rest = [*io.StringIO(text, newline="")][::-1] if "\r" in text else [text][: len(raw)]
        if not self._rest:
            raise StopIteration
        self.line += 1
        line = self._rest.pop()
        self.ends_with_return = line.endswith("\r")
        return line

    def begin_record(self) -> str:
        """Let a record begin at the next line, and return its address."""
        self._record, self._where = self.offset, f"{self._name}:{self.line}"
        return self._where

    @property
    def is_between(self) -> bool:
        """Whether reading can begin at the next line: it begins after a line feed."""
        return not self._rest


def _read_records(lines: _Lines, delimiter: str, width: int = 0, *, is_quoted: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the address and the cells of each record; each has as many as the first, or `width`."""
    csv.field_size_limit(MAX_ROW_BYTES)
    in_quotes = f'put cells with {DELIMITERS[delimiter]} or line breaks in quotes: "a{delimiter} b"'
    reader = csv.reader(
        lines, strict=True, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    )
    next_where, has_returns = lines.begin_record(), width > 0
    try:
        for cells in reader:
            where, next_where = next_where, lines.begin_record()
            has_returns |= lines.ends_with_return and not width
            if lines.ends_with_return and not has_returns:
                what = "ends with a carriage return, and the first line with a line feed"
                raise DataError(where, what, f"{in_quotes}; or write line feeds in place of all carriage returns")
            if not cells:
                continue  # a blank line
            width = width or len(cells)
            if len(cells) != width:
                what = f"has {len(cells)} cells, and the header has {width}"
                raise DataError(where, what, in_quotes)
            yield where, cells
    except csv.Error as error:
        fix = 'close every quote, and write a quote inside a quoted cell twice: "say ""hi"""'
        raise DataError(next_where, f"malformed CSV: {error}", fix) from error

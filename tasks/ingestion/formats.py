"""Readers for CSV, JSON lines, JSON arrays, Parquet and text files; every error names the file and the line.

A CSV file has commas, semicolons, tabs or vertical bars, as its header says; a `.tsv` file has tabs.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from params import DataError
from tasks.ingestion import encodings
from tasks.ingestion.batches import BATCH_ROWS, AddressedRows, Batches, SourceBatch, to_batches
from tasks.ingestion.json_files import PLACE_ROWS, has_row_per_line, read_json_items, read_json_lines
from tasks.ingestion.row_limit import (
    MAX_ROW_BYTES,
    bounded_memory,
    bounded_slices,
    check_number_of_columns,
    read_bounded_line,
    too_large_error,
)

TextUnit = Literal["line", "paragraph", "file"]
JSON_SUFFIXES = (".jsonl", ".json")
TABLE_SUFFIXES = (".csv", ".tsv")
SUFFIXES = (*TABLE_SUFFIXES, *JSON_SUFFIXES, ".parquet", ".txt")
"""Suffixes of files that can be read; those of text may have one of `COMPRESSIONS` behind it."""
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""What can separate the columns of a CSV file."""
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")  # below 2**63; `007` is text, not a number, and so is `-0`
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?([eE][+-]?\d{1,2})?")  # integers up to 15 digits are exact
CsvColumns = Mapping[str, Callable[[str], Any]]
"""The columns of a CSV file, each with the type of its values: `int`, `float` or `str`."""


def read_rows_of_file(
    path: Path,
    name: str,
    text_unit: TextUnit = "paragraph",
    *,
    columns: CsvColumns | None = None,
    begin: encodings.TextFilePosition = encodings.START,
    first: int = 0,
    rows: int | None = None,
) -> Batches:
    """Yield the rows of one file, whose suffix gives its format: from number `first` on, by default all.

    Errors call the file `name`. Reading begins at `begin`, and a CSV file has `columns`, if they are known.

    Raises:
        DataError: the file is empty, unreadable or malformed.
    """
    suffix = encodings.format_suffix(path)
    with translate_read_errors(path, name):
        if suffix == ".parquet":
            with open_parquet(path, name) as parquet:
                yield from _parquet_batches(parquet, name, first, rows)
            return
        if suffix in TABLE_SUFFIXES and columns is None:
            columns, _, _ = index_csv(path, name)
        with encodings.open_as_utf8(path, name) as file:
            if begin.offset:
                file.seek(begin.offset)
            if columns is not None:
                found = _csv_rows(file, name, columns, begin, find_delimiter(path, name))
            elif suffix in JSON_SUFFIXES and not has_row_per_line(path, name):
                found = read_json_items(file, path, name)
            elif suffix in JSON_SUFFIXES:
                found = read_json_lines(file, path, name, begin)
            else:
                found = ((where, {"text": unit}) for where, unit in _text_units(file, name, text_unit))
            skip = first - begin.row
            numbers = [name for name, kind in (columns or {}).items() if kind is float]
            yield from to_batches(
                (row for row in islice(found, skip, None if rows is None else skip + rows)), written_numbers=numbers
            )


def read_file_columns(path: Path, name: str) -> set[str]:
    """Return the columns of a CSV, Parquet or text file, of which only the beginning is read."""
    with translate_read_errors(path, name):
        if encodings.format_suffix(path) == ".parquet":
            with open_parquet(path, name) as file:
                return set(file.schema_arrow.names)
        if encodings.format_suffix(path) in TABLE_SUFFIXES:
            with open_table(path, name) as (_, records, delimiter):
                return set(_csv_header(records, path, name, delimiter))
    return {"text"}


def read_cells(path: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address and the cells of each row of a CSV file, by column, as they are written.

    Raises:
        DataError: the file is no CSV file, empty, unreadable or malformed.
    """
    if encodings.format_suffix(path) not in TABLE_SUFFIXES:
        raise DataError(name, "is no CSV file", "save the table as CSV, in UTF-8")
    with translate_read_errors(path, name), open_table(path, name) as (_, records, delimiter):
        header = _csv_header(records, path, name, delimiter)
        yield from ((where, dict(zip(header, cells, strict=True))) for where, cells in records)


@contextlib.contextmanager
def translate_read_errors(path: Path, name: str) -> Iterator[None]:
    """Refuse an empty file, and raise errors of reading `path` as a `DataError` that names the file."""
    try:
        if path.stat().st_size == 0:
            raise DataError(name, "the file is empty", "add rows, or exclude the file from the pattern")
        yield
    except UnicodeDecodeError as error:
        raise encodings.not_utf8_error(path, name, error) from error
    except OSError as error:
        fix = "check that the file exists and that you may read it"
        raise DataError(name, f"cannot be read: {error}", fix) from error


def index_csv(path: Path, name: str) -> tuple[CsvColumns, list[encodings.TextFilePosition], int]:
    """Read a CSV file, and return its columns, the places of about every `PLACE_ROWS`th row from the first on, and the number of rows.

    CSV has no types: a column is numeric only if all of its cells are numbers.
    """
    with open_table(path, name) as (lines, records, delimiter):
        header = _csv_header(records, path, name, delimiter)
        integers, numbers = set(range(len(header))), set(range(len(header)))
        places, rows = [encodings.START], 0
        for _, cells in records:
            integers -= {column for column in integers if cells[column] and not _INTEGER.fullmatch(cells[column])}
            numbers -= {column for column in numbers if cells[column] and not _NUMBER.fullmatch(cells[column])}
            rows += 1
            if rows - places[-1].row >= PLACE_ROWS and lines.is_between:
                places.append(encodings.TextFilePosition(rows, lines.offset, lines.line))
    kinds = (int if column in integers else float if column in numbers else str for column in range(len(header)))
    return dict(zip(header, kinds, strict=True)), places, rows


@contextlib.contextmanager
def open_table(path: Path, name: str) -> Iterator[tuple[_Lines, Iterator[tuple[str, list[str]]], str]]:
    """Open a CSV file, and give its lines, its records, the header first, and what separates its columns."""
    delimiter = find_delimiter(path, name)
    with encodings.open_as_utf8(path, name) as file:
        lines = _Lines(file, name, encodings.START)
        yield lines, _csv_cells(lines, delimiter), delimiter


def find_delimiter(path: Path, name: str) -> str:
    """Return what separates the columns of a CSV file: in its first line a comma, if there is one or nothing else."""
    if encodings.format_suffix(path) == ".tsv":
        return "\t"
    with encodings.open_as_utf8(path, name) as file:
        header = read_bounded_line(file, f"{name}:1").partition(b"\r")[0]
    return next((one for one in DELIMITERS if one.encode() in header), ",")


def has_places(path: Path, name: str) -> bool:
    """Whether a file can be read from any row on."""
    suffix = encodings.format_suffix(path)
    if suffix not in (*TABLE_SUFFIXES, *JSON_SUFFIXES):
        return suffix == ".parquet"
    return encodings.is_plain_text(path) and (suffix in TABLE_SUFFIXES or has_row_per_line(path, name))


def _csv_header(records: Iterator[tuple[str, list[str]]], path: Path, name: str, delimiter: str) -> list[str]:
    where, header = next(records, (name, []))
    check_number_of_columns(len(header), where)
    if header and not header[0].strip() and all(cell.strip() for cell in header[1:]):
        what = "its first column has no name: pandas writes its index like that"
        raise DataError(where, what, encodings.table_fix(path, "index_col=0", delimiter))
    for column, count in Counter(header).items():
        if not column.strip() or count > 1:
            what = f"the header has column `{column}` twice" if column.strip() else "a column of the header has no name"
            raise DataError(where, what, "give every column its own name")
    return header


def _csv_rows(
    file: IO[bytes], name: str, columns: CsvColumns, begin: encodings.TextFilePosition, delimiter: str
) -> AddressedRows:
    records = _csv_cells(_Lines(file, name, begin), delimiter, len(columns))
    for where, cells in islice(records, 0 if begin.offset else 1, None):  # the header is no row
        # An empty cell is null in a numeric column, and empty text elsewhere. Numbers with decimals stay as they are written.
        values = (
            (int(cell) if kind is int else cell) if cell or kind is str else None
            for kind, cell in zip(columns.values(), cells, strict=True)
        )
        yield where, dict(zip(columns, values, strict=True))


class _Lines:
    """The lines of a file of text that is open at a place. They end as in a file opened with `newline=""`."""

    def __init__(self, file: IO[bytes], name: str, begin: encodings.TextFilePosition) -> None:
        self._file, self._name, self.offset, self.line = file, name, begin.offset, begin.line
        self._rest: list[str] = []
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
        return self._rest.pop()

    def begin_record(self) -> str:
        """Let a record begin at the next line, and return its address."""
        self._record, self._where = self.offset, f"{self._name}:{self.line}"
        return self._where

    @property
    def is_between(self) -> bool:
        """Whether reading can begin at the next line: it begins after a line feed."""
        return not self._rest


def _csv_cells(lines: _Lines, delimiter: str, width: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Yield the address and the cells of each record; each has as many as the first, or `width`."""
    csv.field_size_limit(MAX_ROW_BYTES)
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    next_where = lines.begin_record()
    try:
        for cells in reader:
            where, next_where = next_where, lines.begin_record()
            if not cells:
                continue  # a blank line
            width = width or len(cells)
            if len(cells) != width:
                what = f"has {len(cells)} cells, and the header has {width}"
                fix = f'put cells with {DELIMITERS[delimiter]} or line breaks in quotes: "a{delimiter} b"'
                raise DataError(where, what, fix)
            yield where, cells
    except csv.Error as error:
        fix = 'close every quote, and write a quote inside a quoted cell twice: "say ""hi"""'
        raise DataError(next_where, f"malformed CSV: {error}", fix) from error


def _parquet_batches(file: pq.ParquetFile, name: str, first: int, rows: int | None) -> Batches:
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes]).tolist()
    stop = starts[-1] if rows is None else first + rows
    groups = [i for i in range(len(sizes)) if starts[i] < stop and starts[i + 1] > first]
    begin = starts[groups[0]] if groups else first
    for batch in _decoded(file, name, groups):
        skip = max(0, first - begin)
        found, at = batch.slice(skip, max(0, min(stop - begin, len(batch)) - skip)), begin + skip
        for part in bounded_slices(found, name, at) if len(found) else ():
            yield SourceBatch(part, lambda row, start=at: f"{name} row {start + row}")  # type: ignore[misc]
            at += len(part)
        begin += len(batch)
        if begin >= stop:
            return


def _decoded(file: pq.ParquetFile, name: str, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    batches = file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups) if groups else iter(())
    while True:
        with bounded_memory(name):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextlib.contextmanager
def open_parquet(path: Path, name: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; what it raises while it is read becomes a `DataError`."""
    try:
        with pq.ParquetFile(path) as file:
            names: Sequence[str] = file.schema_arrow.names
            check_number_of_columns(len(names), name)
            if len(set(names)) < len(names):
                what = f"several columns have the same name: {sorted(names)}"
                raise DataError(name, what, "give every column its own name")
            yield file
    except pa.ArrowException as error:
        raise DataError(name, f"cannot be read as Parquet: {error}", "write or download the file again") from error


def _text_units(file: io.BufferedReader, name: str, unit: TextUnit) -> Iterator[tuple[str, str]]:
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        if unit == "file":
            whole = text.read(MAX_ROW_BYTES + 1)
            if len(whole) > MAX_ROW_BYTES:
                raise too_large_error(name)
            yield name, whole
            return
        lines: list[str] = []
        number = size = 0
        for number, line in enumerate(iter(lambda: text.readline(MAX_ROW_BYTES + 1), ""), start=1):
            size = len(line) + (size if lines else 0)
            if size > MAX_ROW_BYTES:
                raise too_large_error(f"{name}:{number - len(lines)}")
            if line.strip():
                lines.append(line.rstrip("\n"))
            if lines and (unit == "line" or not line.strip()):
                first = number - len(lines) + (1 if line.strip() else 0)
                yield f"{name}:{first}", "\n".join(lines)
                lines.clear()
        if lines:
            yield f"{name}:{number - len(lines) + 1}", "\n".join(lines)

"""Readers for CSV, JSON lines, Parquet and text files; every error names the file and the line."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from params import DataError
from tasks.ingestion.batches import BATCH_ROWS, AddressedRows, Batches, SourceBatch, to_batches

TextUnit = Literal["line", "paragraph", "file"]
JSON_SUFFIXES = (".jsonl", ".json")
SUFFIXES = (".csv", *JSON_SUFFIXES, ".parquet", ".txt")
_MAX_CELL_BYTES = 64 << 20
PLACE_ROWS = 512
"""Rows from one place to the next, about."""
_BLOCK_BYTES = 1 << 20
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")  # below 2**63; `007` is text, not a number
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?([eE][+-]?\d{1,2})?")  # integers up to 15 digits are exact
CsvColumns = Mapping[str, Callable[[str], Any]]
"""The columns of a CSV file, each with the type of its values: `int`, `float` or `str`."""


@dataclass(frozen=True)
class TextFilePosition:
    """Where reading can begin in a file of text: at a row, with its offset in bytes, and at a line."""

    row: int = 0
    offset: int = 0
    line: int = 1


def read_rows_of_file(
    path: Path,
    name: str,
    text_unit: TextUnit = "paragraph",
    *,
    columns: CsvColumns | None = None,
    begin: TextFilePosition = TextFilePosition(),
    first: int = 0,
    rows: int | None = None,
) -> Batches:
    """Yield the rows of one file, whose suffix gives its format: from number `first` on, by default all.

    Errors call the file `name`. Reading begins at `begin`, and a CSV file has `columns`, if they are known.

    Raises:
        DataError: the file is empty, unreadable or malformed.
    """
    suffix = path.suffix.lower()
    with translate_read_errors(path, name):
        if suffix == ".parquet":
            with open_parquet(path, name) as parquet:
                yield from _parquet_batches(parquet, name, first, rows)
            return
        if suffix == ".csv" and columns is None:
            columns, _, _ = index_csv(path, name)
        with path.open("rb") as file:
            file.seek(begin.offset)
            if columns is not None:
                found = _csv_rows(file, name, columns, begin)
            elif suffix in JSON_SUFFIXES:
                found = _json_rows(file, name, begin)
            else:
                found = ((where, {"text": unit}) for where, unit in _text_units(file, name, text_unit))
            skip = first - begin.row
            yield from to_batches(row for row in islice(found, skip, None if rows is None else skip + rows))


def read_file_columns(path: Path, name: str) -> set[str]:
    """Return the columns of a CSV, Parquet or text file, of which only the beginning is read."""
    with translate_read_errors(path, name):
        if path.suffix.lower() == ".parquet":
            with open_parquet(path, name) as file:
                return set(file.schema_arrow.names)
        if path.suffix.lower() == ".csv":
            with path.open("rb") as lines:
                return set(_csv_header(_csv_cells(_Lines(lines, TextFilePosition()), name), name))
    return {"text"}


@contextlib.contextmanager
def translate_read_errors(path: Path, name: str) -> Iterator[None]:
    """Refuse an empty file, and raise errors of reading `path` as a `DataError` that names the file."""
    try:
        if path.stat().st_size == 0:
            raise DataError(name, "the file is empty", "add rows, or exclude the file from the pattern")
        yield
    except UnicodeDecodeError as error:
        raise _not_utf8(path, name) from error
    except OSError as error:
        fix = "check that the file exists and that you may read it"
        raise DataError(name, f"cannot be read: {error}", fix) from error


def _not_utf8(path: Path, name: str) -> DataError:
    """Return an error with the byte offset and line in the file; the decoder's own error counts from its last block."""
    fix = "convert the file to UTF-8, for example with `iconv -f latin1 -t utf-8`"
    offset = 0
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                what = f"not UTF-8: the byte at offset {offset + error.start} (line {line})"
                return DataError(f"{name}:{line}", what, fix)
            offset += len(raw)
    return DataError(name, "not UTF-8", fix)


def index_csv(path: Path, name: str) -> tuple[CsvColumns, list[TextFilePosition], int]:
    """Read a CSV file, and return its columns, the places of about every `PLACE_ROWS`th row from the first on, and the number of rows.

    CSV has no types: a column is numeric only if all of its cells are numbers.
    """
    with path.open("rb") as file:
        lines = _Lines(file, TextFilePosition())
        records = _csv_cells(lines, name)
        header = _csv_header(records, name)
        integers, numbers = set(range(len(header))), set(range(len(header)))
        places, rows = [TextFilePosition()], 0
        for _, cells in records:
            integers -= {column for column in integers if cells[column] and not _INTEGER.fullmatch(cells[column])}
            numbers -= {column for column in numbers if cells[column] and not _NUMBER.fullmatch(cells[column])}
            rows += 1
            if rows - places[-1].row >= PLACE_ROWS and lines.is_between:
                places.append(TextFilePosition(rows, lines.offset, lines.line))
    kinds = (int if column in integers else float if column in numbers else str for column in range(len(header)))
    return dict(zip(header, kinds, strict=True)), places, rows


def _csv_header(records: Iterator[tuple[str, list[str]]], name: str) -> list[str]:
    where, header = next(records, (name, []))
    for column, count in Counter(header).items():
        if not column.strip() or count > 1:
            what = f"the header has column `{column}` twice" if column.strip() else "a column of the header has no name"
            raise DataError(where, what, "give every column its own name")
    return header


def _csv_rows(file: IO[bytes], name: str, columns: CsvColumns, begin: TextFilePosition) -> AddressedRows:
    records = _csv_cells(_Lines(file, begin), name, len(columns))
    for where, cells in islice(records, 0 if begin.offset else 1, None):  # the header is no row
        # An empty cell is null in a numeric column, and empty text elsewhere.
        values = (
            kind(cell) if cell or kind is str else None for kind, cell in zip(columns.values(), cells, strict=True)
        )
        yield where, dict(zip(columns, values, strict=True))


class _Lines:
    """The lines of a file of text that is open at a place. They end as in a file opened with `newline=""`."""

    def __init__(self, file: IO[bytes], begin: TextFilePosition) -> None:
        self._file, self.offset, self.line = file, begin.offset, begin.line
        self._rest: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self._rest:
            raw = self._file.readline()
            text = raw.decode("utf-8" if self.offset else "utf-8-sig")
            self.offset += len(raw)
            self._rest = [*io.StringIO(text, newline="")][::-1] if "\r" in text else [text][: len(raw)]
        if not self._rest:
            raise StopIteration
        self.line += 1
        return self._rest.pop()

    @property
    def is_between(self) -> bool:
        """Whether reading can begin at the next line: it begins after a line feed."""
        return not self._rest


def _csv_cells(lines: _Lines, name: str, width: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Yield the address and the cells of each record; each has as many as the first, or `width`."""
    csv.field_size_limit(_MAX_CELL_BYTES)
    reader = csv.reader(lines, strict=True)
    line = lines.line
    try:
        for cells in reader:
            where, line = f"{name}:{line}", lines.line
            if not cells:
                continue  # a blank line
            width = width or len(cells)
            if len(cells) != width:
                what = f"has {len(cells)} cells, and the header has {width}"
                raise DataError(where, what, 'put cells with commas or line breaks in quotes: "a, b"')
            yield where, cells
    except csv.Error as error:
        fix = 'close every quote, and write a quote inside a quoted cell twice: "say ""hi"""'
        raise DataError(f"{name}:{line}", f"malformed CSV: {error}", fix) from error


def index_json_lines(path: Path) -> tuple[list[TextFilePosition], int]:
    """Return the places of every `PLACE_ROWS`th row of a file of JSON lines, from the first on, and the number of rows."""
    places, rows, line, offset = list[TextFilePosition](), 0, 1, 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES) + file.readline():
            data = np.frombuffer(block, np.uint8)
            starts = np.concatenate([[0], np.flatnonzero(data[:-1] == ord("\n")) + 1])
            is_row = data[starts] == ord("{")
            for i in np.flatnonzero(~is_row).tolist():  # a blank line, or one that begins with a space
                stop = starts[i + 1] if i + 1 < len(starts) else len(block)
                encoding = "utf-8" if line + i > 1 else "utf-8-sig"
                is_row[i] = bool(block[starts[i] : stop].decode(encoding, errors="replace").strip())
            own = np.flatnonzero(is_row)
            for number in range(-rows % PLACE_ROWS, len(own), PLACE_ROWS):
                i = int(own[number])
                places.append(TextFilePosition(rows + number, offset + int(starts[i]), line + i))
            rows += len(own)
            line += len(starts)
            offset += len(block)
    return places, rows


def _json_rows(file: IO[bytes], name: str, begin: TextFilePosition) -> AddressedRows:
    for number, raw in enumerate(file, start=begin.line):
        line = raw.decode("utf-8" if number > 1 else "utf-8-sig")
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            row = _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            raise DataError(where, f"malformed JSON: {error}", "write one JSON object per line") from error
        if not isinstance(row, dict):
            kind = {list: "an array", str: "a string", type(None): "null"}.get(type(row), "a number or a boolean")
            raise DataError(where, f"is {kind}, not an object", 'write one JSON object per line: {"text": "..."}')
        yield where, row


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!a} occurs twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}; write null or a number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)


def _parquet_batches(file: pq.ParquetFile, name: str, first: int, rows: int | None) -> Batches:
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes]).tolist()
    stop = starts[-1] if rows is None else first + rows
    groups = [i for i in range(len(sizes)) if starts[i] < stop and starts[i + 1] > first]
    begin = starts[groups[0]] if groups else first
    for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups) if groups else ():
        skip = max(0, first - begin)
        found = batch.slice(skip, max(0, min(stop - begin, len(batch)) - skip))
        if len(found):
            yield SourceBatch(found, lambda row, start=begin + skip: f"{name} row {start + row}")  # type: ignore[misc]
        begin += len(batch)
        if begin >= stop:
            return


@contextlib.contextmanager
def open_parquet(path: Path, name: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; what it raises while it is read becomes a `DataError`."""
    try:
        with pq.ParquetFile(path) as file:
            names: Sequence[str] = file.schema_arrow.names
            if len(set(names)) < len(names):
                what = f"several columns have the same name: {sorted(names)}"
                raise DataError(name, what, "give every column its own name")
            yield file
    except pa.ArrowException as error:
        raise DataError(name, f"cannot be read as Parquet: {error}", "write or download the file again") from error


def _text_units(file: io.BufferedReader, name: str, unit: TextUnit) -> Iterator[tuple[str, str]]:
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        if unit == "file":
            yield name, text.read()
            return
        lines: list[str] = []
        number = 0
        for number, line in enumerate(text, start=1):
            if line.strip():
                lines.append(line.rstrip("\n"))
            if lines and (unit == "line" or not line.strip()):
                first = number - len(lines) + (1 if line.strip() else 0)
                yield f"{name}:{first}", "\n".join(lines)
                lines.clear()
        if lines:
            yield f"{name}:{number - len(lines) + 1}", "\n".join(lines)

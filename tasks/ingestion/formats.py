"""Readers for CSV, JSON lines, Parquet and text files; every error names the file and the line."""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from params import DataError
from tasks.ingestion.batches import BATCH_ROWS, AddressedRows, Batch, Batches, to_batches

TextUnit = Literal["line", "paragraph", "file"]
JSON_SUFFIXES = (".jsonl", ".json")
SUFFIXES = (".csv", *JSON_SUFFIXES, ".parquet", ".txt")
_MAX_CELL_BYTES = 64 << 20
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")  # below 2**63; `007` is text, not a number
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?([eE][+-]?\d{1,2})?")  # integers up to 15 digits are exact


def read_file(path: Path, name: str, text_unit: TextUnit) -> Batches:
    """Yield the rows of one file, whose suffix gives its format.

    Errors call the file `name`.

    Raises:
        DataError: the file is empty, unreadable or malformed.
    """
    suffix = path.suffix.lower()
    with read_errors(path, name):
        if path.stat().st_size == 0:
            raise DataError(name, "the file is empty", "add rows, or exclude the file from the pattern")
        if suffix == ".csv":
            yield from to_batches(_csv_rows(path, name))
        elif suffix in JSON_SUFFIXES:
            yield from to_batches(_json_rows(path, name))
        elif suffix == ".parquet":
            yield from _parquet_batches(path, name)
        else:
            yield from to_batches(_text_rows(path, name, text_unit))


@contextlib.contextmanager
def read_errors(path: Path, name: str) -> Iterator[None]:
    """Raise errors of reading `path` as a `DataError` that names the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise _not_utf8(path, name) from error
    except OSError as error:
        fix = "check that the file exists and that you may read it"
        raise DataError(name, f"cannot be read: {error}", fix) from error


def _not_utf8(path: Path, name: str) -> DataError:
    """Return an error with the byte offset and line in the file; the decoder's own error counts from its last block."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, line, buffered = 0, 1, 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            buffered = len(decoder.getstate()[0])
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                line += block.count(b"\n", 0, max(0, error.start - buffered))
                offset += error.start - buffered
                break
            offset += len(block)
            line += block.count(b"\n")
        else:  # the file ends inside a character
            offset -= len(decoder.getstate()[0])
    what = f"not UTF-8: the byte at offset {offset} (line {line})"
    return DataError(f"{name}:{line}", what, "convert the file to UTF-8, for example with `iconv -f latin1 -t utf-8`")


def _csv_rows(path: Path, name: str) -> AddressedRows:
    """Read the file twice: CSV has no types, and a column is numeric only if all of its cells are numbers."""
    header, records = _csv_records(path, name)
    integers, numbers = set(range(len(header))), set(range(len(header)))
    for _, cells in records:
        integers -= {column for column in integers if cells[column] and not _INTEGER.fullmatch(cells[column])}
        numbers -= {column for column in numbers if cells[column] and not _NUMBER.fullmatch(cells[column])}
    kinds: list[Callable[[str], Any]] = [
        int if column in integers else float if column in numbers else str for column in range(len(header))
    ]
    for where, cells in _csv_records(path, name)[1]:
        # An empty cell is null in a numeric column, and empty text elsewhere.
        values = (kind(cell) if cell or kind is str else None for kind, cell in zip(kinds, cells, strict=True))
        yield where, dict(zip(header, values, strict=True))


def _csv_records(path: Path, name: str) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    """Return the header, and the records with their addresses."""
    records = _csv_cells(path, name)
    where, header = next(records, (name, []))
    for column, count in Counter(header).items():
        if not column.strip() or count > 1:
            what = f"the header has column `{column}` twice" if column.strip() else "a column of the header has no name"
            raise DataError(where, what, "give every column its own name")
    return header, records


def _csv_cells(path: Path, name: str) -> Iterator[tuple[str, list[str]]]:
    csv.field_size_limit(_MAX_CELL_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        line, width = 1, 0
        try:
            for cells in reader:
                where, line = f"{name}:{line}", reader.line_num + 1
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


def _json_rows(path: Path, name: str) -> AddressedRows:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
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


def _parquet_batches(path: Path, name: str) -> Batches:
    try:
        with pq.ParquetFile(path) as file:
            names: Sequence[str] = file.schema_arrow.names
            if len(set(names)) < len(names):
                what = f"several columns have the same name: {sorted(names)}"
                raise DataError(name, what, "give every column its own name")
            first = 0
            for rows in file.iter_batches(batch_size=BATCH_ROWS):
                yield Batch(rows, lambda row, first=first: f"{name} row {first + row}")  # type: ignore[misc]
                first += len(rows)
    except pa.ArrowException as error:
        raise DataError(name, f"cannot be read as Parquet: {error}", "write or download the file again") from error


def _text_rows(path: Path, name: str, unit: TextUnit) -> AddressedRows:
    with path.open(encoding="utf-8-sig") as file:
        for where, text in _text_units(file, name, unit):
            yield where, {"text": text}


def _text_units(file: IO[str], name: str, unit: TextUnit) -> Iterator[tuple[str, str]]:
    if unit == "file":
        yield name, file.read()
        return
    lines: list[str] = []
    number = 0
    for number, line in enumerate(file, start=1):
        if line.strip():
            lines.append(line.rstrip("\n"))
        if lines and (unit == "line" or not line.strip()):
            first = number - len(lines) + (1 if line.strip() else 0)
            yield f"{name}:{first}", "\n".join(lines)
            lines.clear()
    if lines:
        yield f"{name}:{number - len(lines) + 1}", "\n".join(lines)

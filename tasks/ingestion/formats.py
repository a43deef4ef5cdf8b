"""Readers for tables, JSON lines, JSON arrays, Parquet and text files; every error names the file and the line."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from params import DataError
from tasks.ingestion import encodings
from tasks.ingestion.batches import BATCH_ROWS, Batches, SourceBatch, to_batches
from tasks.ingestion.class_names import find_class_features, name_classes
from tasks.ingestion.json_files import has_row_per_line, read_json_items, read_json_lines
from tasks.ingestion.row_limit import (
    MAX_ROW_BYTES,
    bounded_memory,
    bounded_slices,
    check_number_of_columns,
    too_large_error,
)
from tasks.ingestion.tables import TABLE_SUFFIXES, TableLayout, index_table, read_column_names, read_rows

TextUnit = Literal["line", "paragraph", "file"]
JSON_SUFFIXES = (".jsonl", ".json")
SUFFIXES = (*TABLE_SUFFIXES, *JSON_SUFFIXES, ".parquet", ".txt")
"""Suffixes of files that can be read; those of text may have one of `COMPRESSIONS` behind it."""


def read_rows_of_file(
    path: Path,
    name: str,
    text_unit: TextUnit = "paragraph",
    *,
    layout: TableLayout | None = None,
    begin: encodings.TextFilePosition = encodings.START,
    first: int = 0,
    rows: int | None = None,
) -> Batches:
    """Yield the rows of one file, whose suffix gives its format: from number `first` on, by default all.

    Errors call the file `name`. Reading begins at `begin`, and a table has this layout, if it is known.

    Raises:
        DataError: the file is empty, unreadable or malformed.
    """
    suffix = encodings.format_suffix(path)
    with encodings.translate_read_errors(path, name):
        if suffix == ".parquet":
            with open_parquet(path, name) as parquet:
                yield from _parquet_batches(parquet, name, first, rows)
            return
        if suffix in TABLE_SUFFIXES and layout is None:
            layout, _, _ = index_table(path, name)
        with encodings.open_as_utf8(path, name) as file:
            if begin.offset:
                file.seek(begin.offset)
            if layout is not None:
                found = read_rows(file, name, layout, begin)
            elif suffix in JSON_SUFFIXES and not has_row_per_line(path, name):
                found = read_json_items(file, path, name)
            elif suffix in JSON_SUFFIXES:
                found = read_json_lines(file, path, name, begin)
            else:
                found = ((where, {"text": unit}) for where, unit in _text_units(file, name, text_unit))
            skip = first - begin.row
            numbers = [name for name, kind in layout.columns.items() if kind is float] if layout else ()
            yield from to_batches(
                (row for row in islice(found, skip, None if rows is None else skip + rows)), written_numbers=numbers
            )


def read_file_columns(path: Path, name: str) -> set[str]:
    """Return the columns of a table, a Parquet or a text file, of which only the beginning is read."""
    with encodings.translate_read_errors(path, name):
        if encodings.format_suffix(path) == ".parquet":
            with open_parquet(path, name) as file:
                return set(file.schema_arrow.names)
        if encodings.format_suffix(path) in TABLE_SUFFIXES:
            return set(read_column_names(path, name))
    return {"text"}


def has_places(path: Path, name: str) -> bool:
    """Whether a file can be read from any row on."""
    suffix = encodings.format_suffix(path)
    if suffix not in (*TABLE_SUFFIXES, *JSON_SUFFIXES):
        return suffix == ".parquet"
    return encodings.is_plain_text(path) and (suffix in TABLE_SUFFIXES or has_row_per_line(path, name))


def _parquet_batches(file: pq.ParquetFile, name: str, first: int, rows: int | None) -> Batches:
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes]).tolist()
    stop = starts[-1] if rows is None else first + rows
    groups = [i for i in range(len(sizes)) if starts[i] < stop and starts[i + 1] > first]
    begin, classes = starts[groups[0]] if groups else first, find_class_features(file.schema_arrow)
    for batch in _decoded(file, name, groups):
        skip = max(0, first - begin)
        found, at = batch.slice(skip, max(0, min(stop - begin, len(batch)) - skip)), begin + skip
        for bounded in bounded_slices(found, name, at) if len(found) else ():
            part = name_classes(bounded, classes, f"{name} from row {at} on") if classes else bounded
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

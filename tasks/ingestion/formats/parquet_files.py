"""Rows of Parquet files; several processes read their row groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from params import DataError
from tasks.ingestion.batches import BATCH_ROWS, Batches, SourceBatch
from tasks.ingestion.encodings import TextFilePosition
from tasks.ingestion.formats.base import Format, RowPlaces, WantedRows
from tasks.ingestion.formats.class_names import find_class_features, name_classes
from tasks.ingestion.row_limit import bounded_memory, bounded_slices, check_number_of_columns

_AFTER_FOOTER_BYTES: Final = 8
"""A Parquet file ends with the length of its footer and four letters."""


class ParquetFiles(Format):
    """Parquet, with the names of classes that `datasets` writes into its schema."""

    suffixes = (".parquet",)
    title = "Parquet"
    decompress_fix = "decompress it: Parquet is compressed inside"

    def batches(self, path: Path, name: str, wanted: WantedRows) -> Batches:
        with open_parquet(path, name) as file:
            yield from _read_batches(file, name, wanted.first, wanted.count)

    def columns(self, path: Path, name: str) -> set[str]:
        with open_parquet(path, name) as file:
            return set(file.schema_arrow.names)

    def can_be_cut(self, path: Path, name: str) -> bool:
        return True

    def find_places(self, path: Path, name: str, known: Sequence[TextFilePosition] = ()) -> RowPlaces:
        return _find_row_groups(path, name)


def _read_batches(file: pq.ParquetFile, name: str, first: int, rows: int | None) -> Batches:
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


def _find_row_groups(path: Path, name: str) -> RowPlaces:
    """Return the places of the row groups and of the footer."""
    with open_parquet(path, name) as file:
        metadata, rows, places = file.metadata, 0, list[TextFilePosition]()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        pages = [page for c in columns for page in (c.dictionary_page_offset, c.data_page_offset) if page is not None]
        places.append(TextFilePosition(rows, min(pages, default=0)))
        rows += group.num_rows
    offsets = [place.offset for place in places]
    if not _are_ascending(offsets):  # a writer put them in another order
        places = []
    footer = TextFilePosition(rows, path.stat().st_size - _AFTER_FOOTER_BYTES - int(metadata.serialized_size))
    return RowPlaces([TextFilePosition(), *places[1:], footer], rows, ends_with_footer=True)


def _are_ascending(offsets: Sequence[int]) -> bool:
    return all(before < after for before, after in pairwise(offsets))

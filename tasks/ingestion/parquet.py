"""Raw rows as Parquet shards; one part of the source is in memory.

A part of the source gives one shard for each split that has some of its rows. The columns of a shard are those of its own rows,
so rows of other parts never change it. From batch to batch of a part, columns can widen: a null column gets its first value,
integers become doubles, a column is new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from params.foundation.artifacts import GROUP_BY
from params.foundation.hashing import file_sha256
from tasks.ingestion.batches import SourceBatch, common_type, differing_type_error
from tasks.shards.split_rows import SCHEMA, conform_to_schema
from trainer.data.shards import ROW, ROW_ID, Manifest, Shard

GROUP_ROWS = 8192
"""Rows of a Parquet row group. It does not depend on the batches, so the same rows give the same bytes."""


@dataclass(frozen=True)
class SourceColumn:
    """A column of some rows."""

    type: pa.DataType
    where: str
    """Address of the first row that has a value, for errors."""


@dataclass(frozen=True)
class WrittenPart:
    """A part of the source that is written, and the columns of its rows."""

    rows: int
    columns: Mapping[str, SourceColumn]
    shards: Mapping[str, Shard]
    """The shard of each split; their `first_row_id` is 0."""


def write_part_shards(batches: Iterable[tuple[SourceBatch, Sequence[str]]], folder: Path, number: int) -> WrittenPart:
    """Write a part of the source, of which each batch comes with the splits of its rows: `<split>/<number>.parquet` for each split.

    Raises:
        DataError: a column has a type that does not fit the earlier rows.
    """
    columns, tables, rows = dict[str, SourceColumn](), dict[str, list[pa.Table]](), 0
    for batch, splits in batches:
        widen_schema_in_place(columns, _columns(batch, columns))
        places = pa.array(range(rows, rows + len(batch.rows)), pa.int32())
        rows += len(batch.rows)
        table = pa.Table.from_batches([batch.rows]).append_column(ROW, places)
        table = conform_to_schema(table, _schema(columns), batch.address(0))
        for split in dict.fromkeys(splits):
            chosen = [row for row, of in enumerate(splits) if of == split]
            tables.setdefault(split, []).append(table if len(chosen) == len(table) else table.take(chosen))
    shards = {}
    for split, own in tables.items():
        path = folder / split / part_file_name(number)
        path.parent.mkdir(exist_ok=True)
        whole = pa.concat_tables(
            [conform_to_schema(table, _schema(columns), path.stem) for table in own]
        ).combine_chunks()
        pq.write_table(whole, path, compression="zstd", row_group_size=GROUP_ROWS)
        shards[split] = Shard(name=path.name, rows=len(whole), first_row_id=0, sha256=file_sha256(path))
    return WrittenPart(rows, columns, shards)


def _schema(columns: Mapping[str, SourceColumn]) -> pa.Schema:
    return pa.schema([(ROW, pa.int32()), *((name, column.type) for name, column in columns.items())])


def part_file_name(number: int) -> str:
    """Return the name of the files of a part."""
    return f"{number:05}.parquet"


def widen_schema_in_place(columns: dict[str, SourceColumn], found: Mapping[str, SourceColumn]) -> None:
    """Add the columns of later rows to those of earlier rows.

    Raises:
        DataError: a column has a type that does not fit the earlier rows.
    """
    for name, column in found.items():
        before = columns.get(name)
        if before is None or pa.types.is_null(before.type):
            columns[name] = column
            continue
        shared = common_type(before.type, column.type)
        if shared is None:
            raise differing_type_error(column.where, name, column.type, before.type)
        columns[name] = SourceColumn(shared, before.where)


def _columns(batch: SourceBatch, known: Mapping[str, SourceColumn]) -> dict[str, SourceColumn]:
    """The columns of a batch that are new, or that have another type than the known ones."""
    found = {}
    for field, values in zip(batch.rows.schema, batch.rows.columns, strict=True):
        before = known.get(field.name)
        if before is None or not before.type.equals(field.type):
            row = values.is_valid().index(pa.scalar(value=True)).as_py()
            found[field.name] = SourceColumn(field.type, batch.address(max(row, 0)))
    return found


def write_split_schema(folder: Path, columns: Mapping[str, SourceColumn], group_by: Iterable[str]) -> None:
    """Write the columns of a split, and by which of them its rows belong together."""
    schema = pa.schema([(ROW_ID, pa.int64()), *((name, column.type) for name, column in columns.items())])
    names = list(group_by)
    pq.write_metadata(schema.with_metadata({GROUP_BY: json.dumps(names)} if names else None), folder / SCHEMA)


def check_values_fit_types(manifest: Manifest, columns: Mapping[str, SourceColumn]) -> None:
    """Check that the split's columns can hold the values of shards whose columns have other types, such as integers.

    Raises:
        DataError: one cannot.
    """
    for shard in manifest.shards:
        path = manifest.path(shard)
        with pq.ParquetFile(path) as file:
            types = {field.name: field.type for field in file.schema_arrow if field.name != ROW}
            wider = pa.schema(
                [(name, columns[name].type) for name in types if not types[name].equals(columns[name].type)]
            )
            for batch in file.iter_batches(GROUP_ROWS, columns=wider.names) if wider.names else ():
                conform_to_schema(pa.Table.from_batches([batch]), wider, f"{path.parent.name}/{shard.name}")

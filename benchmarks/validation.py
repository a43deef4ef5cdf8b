"""Seconds and peak memory of the validate stage on rows with faults of every kind.

    python -m benchmarks.validation [folder] [numbers of rows]

Each number of rows is written, ingested and validated in a process of its own. The folder keeps all files: run this with
another version of the code (PYTHONPATH) and another folder, and compare validation.json and quarantine.parquet.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from params.foundation.artifacts import Artifacts
from params.schema import Launch, ObjectiveChoice
from params.sections.data import Data
from params.sections.rows import Expectation, Validation
from tasks.ingestion.stage import ingest
from tasks.validation.stage import validate

SIZES = (200_000, 1_000_000)
_BATCH = 50_000
_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("label", pa.string()),
        ("key", pa.int64()),
        ("first", pa.float64()),
        ("second", pa.float64()),
        ("code", pa.string()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us")),
    ]
)


def expectations(*, whole_columns: bool) -> list[Expectation]:
    """Return checks of rows and of keys, and if wanted of whole columns, which are in memory."""
    train = {"type": "comparison", "column": {"name": "split"}, "operator": "==", "parameter": "train"}
    by_row: list[dict[str, Any]] = [
        {"type": "expect_column_value_lengths_to_be_between", "column": "text", "min_value": 10, "max_value": 400},
        {"type": "expect_column_values_to_be_unique", "column": "text"},
        {"type": "expect_column_values_to_be_unique", "column": "key"},
        {"type": "expect_compound_columns_to_be_unique", "column_list": ["first", "flag"]},
        {"type": "expect_column_values_to_be_unique", "column": "code", "row_condition": train, "on_failure": "report"},
        {"type": "expect_column_values_to_match_regex", "column": "code", "regex": "^c[0-9]+$", "mostly": 0.9},
        {"type": "expect_column_values_to_be_between", "column": "first", "min_value": 0, "max_value": 1},
        {"type": "expect_multicolumn_sum_to_equal", "column_list": ["first", "second"], "sum_total": 1, "mostly": 0.5},
        {"type": "expect_column_values_to_be_in_set", "column": "flag", "value_set": [True], "on_failure": "report"},
        {"type": "expect_column_values_to_be_of_type", "column": "key", "type_": "int", "on_failure": "report"},
        {"type": "expect_column_values_to_not_be_null", "column": "key", "mostly": 0.98, "row_condition": train},
    ]
    by_column: list[dict[str, Any]] = [
        {"type": "expect_column_mean_to_be_between", "column": "first", "min_value": 0},
        {
            "type": "expect_column_value_z_scores_to_be_less_than",
            "column": "second",
            "threshold": 3,
            "double_sided": True,
        },
        {"type": "expect_column_values_to_be_increasing", "column": "key", "on_failure": "report"},
        {"type": "expect_column_values_to_match_regex", "column": "at", "regex": "00:00:00$", "on_failure": "report"},
        {"type": "expect_table_row_count_to_be_between", "min_value": 1},
        {
            "type": "expect_column_unique_value_count_to_be_between",
            "column": "label",
            "max_value": 9,
            "on_failure": "report",
        },
    ]
    return [Expectation(**arguments) for arguments in by_row + (by_column if whole_columns else [])]


def rows(count: int, seed: int, known: list[str]) -> Iterator[dict[str, Any]]:
    """Yield rows; one in fifty has a fault, some of them two. `known` collects texts, which later rows repeat."""
    chance = random.Random(seed)
    for n in range(count):
        words = " ".join(f"w{chance.randrange(5000)}" for _ in range(20))
        first = chance.random()
        row: dict[str, Any] = {
            "text": f"{seed}-{n} {words}",
            "label": f"label {chance.randrange(20)}",
            "key": 2**60 + n * 4 + seed,
            "first": first,
            "second": 1 - first,
            "code": f"c{n}",
            "flag": chance.random() < 0.999 or None,
            "at": 1_700_000_000_000_000 + n,
        }
        while chance.random() < 0.02:
            known.append(row["text"])
            faults: dict[str, list[Any]] = {
                "text": [None, "", " \n", "short", "x" * 500, chance.choice(known), chance.choice(known)],
                "label": [None],
                "key": [None, 2**60 + seed],
                "first": [None, float("nan"), -0.0, 0.0, 7.5],
                "second": [None, 1e9],
                "code": [None, "no code", "c1"],
                "flag": [False],
                "at": [None],
            }
            column = chance.choice(list(faults))
            row[column] = chance.choice(faults[column])
        yield row


def write_source(folder: Path, count: int) -> None:
    """Write one Parquet file for each split, a tenth of the rows held out."""
    known: list[str] = []
    for seed, (split, size) in enumerate(
        {"train": count * 9 // 10, "validation": count // 20, "test": count // 20}.items()
    ):
        with pq.ParquetWriter(folder / f"{split}.parquet", _SCHEMA) as writer:
            batch = []
            for row in rows(size, seed, known):
                batch.append(row)
                if len(batch) == _BATCH:
                    writer.write_table(pa.Table.from_pylist(batch, _SCHEMA))
                    batch.clear()
            writer.write_table(pa.Table.from_pylist(batch, _SCHEMA))


def stage(name: str, folder: Path, count: int) -> None:
    """Run one step in this process, and print what it took."""
    artifacts, start = Artifacts("rows", folder), time.perf_counter()
    if name == "write":
        folder.mkdir(parents=True)
        write_source(folder, count)
    elif name == "ingest":
        source = {"kind": "files"} | {
            split: str(folder / f"{split}.parquet") for split in ("train", "validation", "test")
        }
        ingest(artifacts, data=Data.model_validate({"source": source}), seed=1, launch=Launch(micro_batch_size=1))
    else:
        validation = Validation(expectations=expectations(whole_columns=name == "validate"), max_quarantined=0.5)
        objective = ObjectiveChoice(name="sequence_classification")
        validate(
            artifacts,
            seed=1,
            validation=validation,
            objective=objective,
            repo_id="benchmarks/rows",
            endpoint="local",
            launch=Launch(micro_batch_size=1, data_workers=1),
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        json.dumps(
            {"step": name, "rows": count, "seconds": round(time.perf_counter() - start, 1), "GiB": round(peak, 2)}
        )
    )


def main(folder: Path, sizes: list[int]) -> None:
    """Run all steps for each number of rows."""
    for size in sizes:
        for name in ("write", "ingest", "validate rows and keys", "validate"):
            if name != "write" or not (folder / str(size)).exists():
                command = [sys.executable, __file__, "--step", name, str(folder / str(size)), str(size)]
                subprocess.run(
                    command, check=True, env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", str(Path.cwd()))}
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        stage(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(sys.argv[1] if sys.argv[1:] else temporary), [int(n) for n in sys.argv[2:]] or list(SIZES))

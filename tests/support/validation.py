"""The validate stage on small raw splits: write them, run the stage, read what it left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch, ObjectiveChoice
from params.sections.rows import Expectation, NearDuplicates, PretrainedTokenizer, TrainTokenizer, Validation
from tasks.known_rows.rows import ComparedColumns, RowScan, SampledRows, read_compared_values, scan_rows
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.stage_inputs import StageInputsSnapshot
from tasks.validation.report import ValidationReport
from tasks.validation.stage import validate
from tests.support import tiny

ONE_PROCESS = Launch(micro_batch_size=1, data_workers=1)
LANGUAGE = ObjectiveChoice(name="causal_lm")
UNIQUE = Expectation(type="expect_column_values_to_be_unique", column="text")
LONG = Expectation(type="expect_column_value_lengths_to_be_between", column="text", min_value=3)


def write_raw(root: Path, *, dealt: Sequence[str] = (), **splits: dict[str, Any]) -> Artifacts:
    """Raw rows, as the ingest stage leaves them; the held-out splits have one row each unless they are given.

    `dealt`: those whose rows come from among the training rows; the source names the others, whose rows are behind these.
    """
    artifacts = Artifacts("trial", root)
    splits = {"train": {}, "validation": {"text": ["held out one"]}, "test": {"text": ["held out two"]}} | splits
    order = [*dealt, *(split for split in SPLITS if split not in dealt)]
    tiny.write_splits(artifacts.raw, {split: splits[split] for split in order})
    return artifacts


def run_validation(
    artifacts: Artifacts,
    *expectations: Expectation,
    objective: ObjectiveChoice = LANGUAGE,
    max_quarantined: float = 0.9,
    launch: Launch = ONE_PROCESS,
    inputs: StageInputsSnapshot | None = None,
    tokenizer: TrainTokenizer | PretrainedTokenizer | None = None,
    near: NearDuplicates | None = None,
) -> ValidationReport:
    validation = Validation(expectations=list(expectations), max_quarantined=max_quarantined, near_duplicates=near)
    hub = {"repo_id": "tests/tiny", "endpoint": "local"}
    more = {"launch": launch, "inputs": inputs, "tokenizer": tokenizer}
    return validate(artifacts, seed=3, validation=validation, objective=objective, **hub, **more)


def workers(root: Path) -> ShardWorkers:
    """Work on shards in this process; nothing is kept."""
    return ShardWorkers(Artifacts("trial", root), "validate", ONE_PROCESS)


def scanned(rows: SplitRows, columns: ComparedColumns) -> RowScan:
    """What drift sees of all rows."""
    with workers(rows.folder) as own:
        return scan_rows(rows, columns, own)


def good_rows(artifacts: Artifacts, split: str = "train", column: str = "row_id") -> list[Any]:
    """A column of the rows that passed."""
    return SplitRows(artifacts.rows / split).table()[column].to_pylist()


def quarantine_reasons(artifacts: Artifacts) -> dict[tuple[str, int], list[str]]:
    """The reasons in quarantine.parquet, by split and row_id."""
    rows = pq.read_table(artifacts.validated / "quarantine.parquet").to_pylist()
    return {(row["split"], row["row_id"]): row["reasons"] for row in rows}


def sampled(rows: SplitRows, columns: ComparedColumns, row_ids: NDArray[np.int64]) -> SampledRows:
    """What drift compares of some rows."""
    with workers(rows.folder) as own:
        return read_compared_values(rows, columns, row_ids, own)

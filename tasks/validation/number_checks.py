"""The check of numbers that are stored as text: a column of them has one cell such as `n/a` or `1,5`, or all are written in quotes."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import pyarrow.compute as pc

from params.sections.rows import Expectation
from tasks.shards.split_rows import read_numbers
from tasks.validation.check_results import CheckResult
from tasks.validation.expectations import ExpectationResult
from tasks.validation.raw_rows import Positions, RawRows, RawShardWork, union_of_positions
from trainer.objectives.bases.objective import Row

VALUE_IS_A_NUMBER: Final = "value_is_a_number"
"""The check of a text; not an expectation of Great Expectations."""


def check_numbers(rows: RawRows) -> list[CheckResult]:
    """Look for texts that say no number where the objective reads numbers; an empty one is a missing number."""
    results = []
    for column in rows.splits["train"].said:
        work = partial(find_texts_without_number, column)
        found = rows.run(work, rows.parts, what="texts that say numbers", columns=[column])
        failing = union_of_positions([own + part.start for part, own in zip(rows.parts, found, strict=True)])
        result, check = ExpectationResult(not len(failing), failing), Expectation(type=VALUE_IS_A_NUMBER, column=column)
        results.append(CheckResult("objective", check, result, partial(_explain, column), reads_said=True))
    return results


def find_texts_without_number(column: str, work: RawShardWork) -> Positions:
    """Return the positions of the rows of one shard whose text is not empty and says no number."""
    texts = work.part.with_said().table([column])[column]
    is_filled = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    is_wrong = pc.and_(pc.fill_null(is_filled, fill_value=False), pc.is_null(read_numbers(texts)))
    return np.flatnonzero(is_wrong.to_numpy()).astype(np.int64)


def _explain(column: str, row: Row) -> str:
    return f"{row[column]!r} is no number such as 1.5"

"""Held-out rows that the champion has learned from: the gate does not compare there, where it would know the answers.

A release says in its record until which time it has learned, and its profile has the hashes of the rows that it learned from (of many rows,
some of them). Rows that were in its train split can be held out now because the time goes on, or because `seed` or `data.split` has changed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from params.foundation.artifacts import KNOWN_ROWS, PROFILE
from tasks.digests import ReleaseRecord
from tasks.drift.known import read_hashes, shorten_hashes
from tasks.drift.rows import ComparedColumns, hash_rows
from tasks.shards.split_rows import SplitRows
from tasks.shards.times import NO_TIME, read_times, time_of_value
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)


def find_learned_rows(champion: Path, rows: SplitRows, objective: Objective[Any]) -> NDArray[np.int64]:
    """Return the `row_id`s of the rows of a split that the champion, whose files are in a folder, has learned from, ascending."""
    record = ReleaseRecord.of(champion)
    until, times = NO_TIME, rows.times
    # by hash, a row that is older than others may have been held out all the time
    if record and times and "time" in (times["split"], record.data.split):
        until = time_of_value(record.data.learned_until)
    found = [np.zeros(0, np.int64)]
    if times and until != NO_TIME:
        batches = rows.batches([ROW_ID, times["column"]])
        found += [batch[ROW_ID].to_numpy()[read_times(batch[times["column"]]) <= until] for batch in batches]
    if any((champion / name).exists() for name in (KNOWN_ROWS, PROFILE)):
        columns = ComparedColumns.of(rows, objective, ())
        try:
            known = read_hashes(champion, columns, needs_all=False)
            row_ids, hashes = hash_rows(rows, columns)
            found.append(row_ids[np.isin(shorten_hashes(hashes), known)])
        except ValueError as error:
            logger.warning("evaluate: rows that the champion knows are not recognized by their content: %s", error)
    learned = np.unique(np.concatenate(found))
    if len(learned):
        told = "evaluate: the champion has learned from %d of %d rows, which do not count"
        logger.info(told, len(learned), len(rows))
    return learned

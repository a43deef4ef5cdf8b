"""What the champion's release says of held-out rows: which it has learned from, which are new since it was made, and which it had.

The gate does not compare on rows that the champion has learned from, where it would know the answers. A release says in its record until
which time it has learned, and it has hashes of the rows that it learned from (in a profile of many rows, of some of them). Rows that were in
its train split can be held out now because the time goes on, or because `seed` or `data.split` has changed.

A candidate can gain on new rows and forget the old ones, and one number for all rows hides that. So both are judged apart, too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from params.foundation.artifacts import PROFILE
from tasks.digests import ReleaseRecord
from tasks.drift.known import find_known_rows, read_hashes
from tasks.drift.profile import read_profile
from tasks.drift.rows import ComparedColumns, hash_rows
from tasks.shards.split_rows import SplitRows
from tasks.shards.times import NO_TIME, read_times, time_of_value
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)
KNOWN, NEW = "known rows", "new rows"


@dataclass(frozen=True)
class RowAges:
    """The row_ids of held-out rows, ascending, by what the champion's release says of them."""

    learned: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """It has learned from these."""
    of: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """`KNOWN`: it had these rows, to learn from or to be judged on; and `NEW`. A row of which that is not certain is in neither."""
    reason: str = ""
    """Why `of` is empty."""

    @classmethod
    def tell(cls, champion: Path, rows: SplitRows, objective: Objective[Any]) -> RowAges:
        """Look at the rows of a split; the champion's files are in a folder."""
        columns, found, ages = ComparedColumns.of(rows, objective, ()), [_learned_by_time(champion, rows)], {}
        path = champion / PROFILE
        try:
            known = read_hashes(champion, columns, needs_all=False)
            row_ids, is_known = find_known_rows(rows, columns, known)
            found.append(row_ids[is_known])
        except ValueError as error:
            level = logging.WARNING if path.exists() else logging.INFO
            logger.log(level, "evaluate: rows that the champion knows are not recognized by their content: %s", error)
        content = path.read_bytes() if path.exists() else None
        profile, reason = read_profile(content, "the champion's release", columns.content)
        if profile and profile.held_out is None:
            reason = "the champion's release does not say which rows were held out: it is of an earlier version"
        elif profile:
            row_ids, hashes = hash_rows(rows, columns.in_form(profile.form))
            ages = {one: row_ids[its] for one, its in zip((KNOWN, NEW), profile.tell_ages(hashes), strict=True)}
        learned = np.unique(np.concatenate(found))
        if len(learned):
            message = "evaluate: the champion has learned from %d of %d rows, which do not count"
            logger.info(message, len(learned), len(rows))
        return cls(learned, ages, reason)


def _learned_by_time(champion: Path, rows: SplitRows) -> NDArray[np.int64]:
    record, times, found = ReleaseRecord.of(champion), rows.times, [np.zeros(0, np.int64)]
    # by hash, a row that is older than others may have been held out all the time
    if record and times and "time" in (times["split"], record.data.split):
        until = time_of_value(record.data.learned_until)
        batches = rows.batches([ROW_ID, times["column"]]) if until != NO_TIME else ()
        found += [batch[ROW_ID].to_numpy()[read_times(batch[times["column"]]) <= until] for batch in batches]
    return np.concatenate(found)

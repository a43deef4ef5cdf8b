"""Which held-out rows the champion has learned from, which of the others its release had, and which are new since.

The gate does not compare on rows that the champion has learned from, where it would know the answers: because the time goes on, or `seed` or
`data.split` has changed. A candidate can gain on new rows and forget the others, and one number for all rows hides that.

A release says in its record until which time it has learned, and its profile has the hashes of its rows (of many rows, some of them).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from params.foundation.artifacts import PROFILE
from tasks.digests import ReleaseRecord
from tasks.drift.known import read_hashes, shorten_hashes
from tasks.drift.profile import DataProfile
from tasks.drift.rows import ComparedColumns, hash_rows
from tasks.shards.times import NO_TIME, read_times, time_of_value
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.lazy_imports import np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tasks.shards.split_rows import SplitRows
    from trainer.objectives.bases.objective import Objective

KNOWN, NEW = "known rows", "new rows"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowAges:
    """The row_ids of held-out rows by what the champion knows of them, ascending."""

    of: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """For `KNOWN` and `NEW`, by whether its release had them. A row of which that is not certain is in neither."""
    reason: str = ""
    """Why nothing is known of any row."""
    learned: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Those that it has learned from."""

    @classmethod
    def tell(cls, champion: Path, rows: SplitRows, objective: Objective[Any]) -> RowAges:
        """Tell the rows apart by the record and the profile of the champion, whose files are in a folder."""
        columns, found, ages = ComparedColumns.of(rows, objective, ()), list(_learned_by_time(champion, rows)), {}
        row_ids, hashes = hash_rows(rows, columns)
        try:
            known = read_hashes(champion, columns, needs_all=False)
            found.append(row_ids[np.isin(shorten_hashes(hashes), known)])
        except ValueError as error:
            level = logging.WARNING if (champion / PROFILE).exists() else logging.INFO
            logger.log(level, "evaluate: rows that the champion knows are not recognized by their content: %s", error)
        profile, reason = None, "the champion's release has no profile of its rows (validation.drift)"
        try:
            profile = DataProfile.load((champion / PROFILE).read_bytes()) if (champion / PROFILE).exists() else None
        except ValueError as error:
            reason = f"the champion's {PROFILE} cannot be read: {error}"
        if profile and profile.content != columns.content:
            reason = f"the champion learned from other columns: {', '.join(profile.content)}"
        elif profile and profile.held_out is None:
            reason = "the champion's release does not say which rows were held out: it is of an earlier version"
        elif profile:
            reason, both = "", zip((KNOWN, NEW), profile.tell_ages(hashes), strict=True)
            ages = {name: row_ids[its] for name, its in both}
        learned = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
        if len(learned):
            message = "evaluate: the champion has learned from %d of %d rows, which do not count"
            logger.info(message, len(learned), len(rows))
        return cls(ages, reason, learned)


def _learned_by_time(champion: Path, rows: SplitRows) -> Iterator[NDArray[np.int64]]:
    """Yield the row_ids of rows that are no newer than those that the champion learned from."""
    record, times = ReleaseRecord.of(champion), rows.times
    # by hash, a row that is older than others may have been held out all the time
    if not record or not times or "time" not in (times["split"], record.data.split):
        return
    if (until := time_of_value(record.data.learned_until)) != NO_TIME:
        for batch in rows.batches([ROW_ID, times["column"]]):
            yield batch[ROW_ID].to_numpy()[read_times(batch[times["column"]]) <= until]

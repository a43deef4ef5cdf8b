"""Which held-out rows are new since the champion was made, and which it had: learned from, or was judged on.

A candidate can gain on new rows and forget the old ones, and one number for all rows hides that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.drift.profile import DataProfile
from tasks.drift.rows import ComparedColumns, hash_rows
from trainer.objectives.bases.lazy_imports import np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tasks.shards.split_rows import SplitRows
    from trainer.objectives.bases.objective import Objective

KNOWN, NEW = "known rows", "new rows"


@dataclass(frozen=True)
class RowAges:
    """The row_ids of held-out rows, by whether the champion's release had them."""

    of: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """For `KNOWN` and `NEW`, ascending. A row of which that is not certain is in neither."""
    reason: str = ""
    """Why nothing is known of any row."""

    @classmethod
    def tell(cls, profile: Path, rows: SplitRows, objective: Objective[Any]) -> RowAges:
        """Tell the rows apart by the champion's profile, which is at `profile` if its release has one."""
        if not profile.exists():
            return cls(reason="the champion's release has no profile of its rows (validation.drift)")
        try:
            made = DataProfile.load(profile.read_bytes())
        except ValueError as error:
            return cls(reason=f"the champion's {profile.name} cannot be read: {error}")
        columns = ComparedColumns.of(rows, objective, ())
        if made.held_out is None:
            return cls(
                reason="the champion's release does not say which rows were held out: it is of an earlier version"
            )
        if made.content != columns.content:
            return cls(reason=f"the champion learned from other columns: {', '.join(made.content)}")
        row_ids, hashes = hash_rows(rows, columns)
        return cls({name: row_ids[its] for name, its in zip((KNOWN, NEW), made.tell_ages(hashes), strict=True)})

"""Held-out rows that the champion's release had, and those that are new since it was made.

A candidate can gain on new rows and forget the old ones, and one number for all rows hides that. So both are judged apart, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from params.foundation.artifacts import PROFILE
from tasks.evaluation.champion import translate_champion_errors
from tasks.evaluation.plan import EvaluationPlan
from tasks.known_rows.profile import read_profile
from tasks.known_rows.rows import ComparedColumns, hash_rows
from tasks.lineage.learned_rows import HeldOutRows

KNOWN, NEW = "known rows", "new rows"


@dataclass(frozen=True)
class RowAges:
    """The row_ids of held-out rows, ascending, by what the champion's release says of them."""

    of: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """`KNOWN`: it had these rows, to learn from or to be judged on; and `NEW`. A row of which that is not certain is in neither."""
    reason: str = ""
    """Why `of` is empty."""

    @classmethod
    def tell(cls, champion: Path, held_out: HeldOutRows) -> RowAges:
        """Look at the rows of a split; the champion's files are in a folder."""
        path = champion / PROFILE
        content = path.read_bytes() if path.exists() else None
        profile, reason = read_profile(content, "the champion's release", held_out.columns.content)
        if profile is None:
            return cls(reason=reason)
        if profile.held_out is None:
            reason = "the champion's release does not say which rows were held out: it is of an earlier version"
            return cls(reason=reason)
        row_ids, hashes = hash_rows(held_out.rows, held_out.columns.in_form(profile.form))
        return cls({one: row_ids[its] for one, its in zip((KNOWN, NEW), profile.tell_ages(hashes), strict=True)})


def tell_ages(plan: EvaluationPlan) -> RowAges:
    """Return what the champion's release says of the evaluated rows; nothing without a champion."""
    published = plan.published
    if not (published.champion and published.folder):
        return RowAges()
    columns = ComparedColumns.of(plan.rows, plan.resampler.objective, ())
    with translate_champion_errors(published.champion):
        return RowAges.tell(published.folder, HeldOutRows(plan.rows, columns))

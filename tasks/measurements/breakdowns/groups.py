"""What the models do on groups of the held-out rows, such as tenths of the true number: rows and means, as the objective says."""

from __future__ import annotations

from itertools import zip_longest
from math import nan
from typing import TYPE_CHECKING, Any

from tasks.stages import Number, Report
from trainer.objectives.bases.lazy_imports import np

if TYPE_CHECKING:
    from tasks.evaluation.scoring import RowScores
    from trainer.objectives.bases.objective import Objective
    from trainer.objectives.bases.rows import RowBreakdown


class GroupResult(Report):
    group: str
    rows: int
    model: list[Number]
    """A mean for each of `Breakdown.means`."""
    champion: list[Number] | None = None
    """The same of the champion; None without one, or if it does not read all rows."""


class Breakdown(Report):
    """The rows in groups, and the means of each."""

    by: str
    """What puts a row into its group."""
    means: list[str]
    """What each mean is of."""
    groups: list[GroupResult]


def report_breakdowns(objective: Objective[Any], own: RowScores, champion: RowScores | None) -> list[Breakdown]:
    """Return the groups of rows that an objective names, with the means of the candidate, `own`, and of the champion."""
    is_whole = champion is not None and np.array_equal(own.row_ids, champion.row_ids)
    theirs = objective.breakdowns(champion.columns) if champion is not None and is_whole else []
    return [
        Breakdown(
            by=one.by,
            means=list(one.values),
            groups=[
                GroupResult(
                    group=name,
                    rows=int((one.places == place).sum()),
                    model=_means(one, place),
                    champion=other and _means(other, place),
                )
                for place, name in enumerate(one.groups)
            ],
        )
        for one, other in zip_longest(objective.breakdowns(own.columns), theirs)
    ]


def _means(breakdown: RowBreakdown, place: int) -> list[float]:
    found = (values[(breakdown.places == place) & ~np.isnan(values)] for values in breakdown.values.values())
    return [float(values.mean()) if len(values) else nan for values in found]

"""Statistics of groups of rows, such as a query and its documents: the first row of each group has the group's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

from trainer.objectives.bases.lazy_imports import NDArray, np
from trainer.objectives.bases.rows import ScoreColumns


def hash_group_value(value: object) -> int:
    """Return a number for the value that the rows of a group share; as a float, too, it stays what it is."""
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=6).digest(), "big")


def group_statistics(
    scores: ScoreColumns, group: str, statistics: Callable[[Mapping[str, NDArray[np.float64]]], list[float]]
) -> NDArray[np.float64]:
    """Return S numbers for each of N rows, (N, S): what `statistics` says of the scores of each group, in the group's first row.

    The rows of a group have the same number in the score `group`, wherever they stand.
    """
    _, first, inverse, counts = np.unique(scores[group], return_index=True, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    of_groups = [statistics({name: column[rows] for name, column in scores.items()}) for rows in members]
    found = np.zeros((len(inverse), len(of_groups[0])))
    found[first] = of_groups
    return found

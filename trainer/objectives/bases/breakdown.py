"""Rows in named groups, such as tenths of the true number, and what a model does on each: for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainer.objectives.bases.lazy_imports import NDArray, np


class RowBreakdown(NamedTuple):
    """One way to put rows into groups, with values of each row whose means the report shows by group."""

    by: str
    """What puts a row into its group: `true price`."""
    groups: Sequence[str]
    """The names of the G groups, in their order."""
    places: NDArray[np.int64]
    """The group of each of N rows, from 0 on, (N,)."""
    values: Mapping[str, NDArray[np.float64]]
    """By the name of a mean, the value of each row, (N,); NaN of a row that has none."""


def cut_into_tenths(values: NDArray[np.float64]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of up to ten groups of about equally many of N values, (N,), and the group of each, (N,).

    Equal values are in one group, and up to ten different ones make a group each. A name is the least and the largest value of its group.
    """
    known = np.unique(values)
    tenths = np.quantile(values, np.arange(1, 11) / 10, method="inverted_cdf")
    ends = known if len(known) <= 10 else np.unique(tenths)
    places = np.searchsorted(ends, values)
    own = [values[places == place] for place in range(len(ends))]
    return [_range(float(group.min()), float(group.max())) for group in own], places


def _range(low: float, high: float) -> str:
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"

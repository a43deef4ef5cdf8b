"""Which split a row of the source goes to: a hash of its content decides, or of the columns by which rows belong together."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.shards.split_rows import group_values_of_row


@dataclass(frozen=True)
class SplitAssigner:
    """How the rows of one split of the source are divided."""

    source_split: str
    """Where rows go that `shares` sends nowhere else."""
    shares: Mapping[str, float]
    """The share of the rows for each split that the source lacks."""
    group_by: Mapping[str, bool]
    """The columns by which rows belong together, and whether they hold several types; empty if each row is on its own."""
    seed: int

    def of(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        if not self.shares:
            return [self.source_split] * len(rows)
        groups = (group_values_of_row(row, self.group_by) for row in rows)
        return [assign_split(group or row, self.shares, self.seed) for group, row in zip(groups, rows, strict=True)]


def assign_split(row: Mapping[str, Any], shares: Mapping[str, float], seed: int) -> str:
    """Return the split of a training row, which depends on its values, the shares and the seed only.

    The shares divide the interval of positions, starting at 0; the rest of it is `train`.
    """
    position = row_position(row, seed)
    for split, share in shares.items():
        if position < share:
            return split
        position -= share
    return "train"


def row_position(row: Mapping[str, Any], seed: int) -> float:
    """Return the number in [0, 1) that SHA-256 makes of the seed and the row's canonical JSON."""
    digest = hashlib.sha256(f"{seed}\n{canonical_json(row)}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def canonical_json(value: object) -> str:
    """Return JSON that is equal for equal values: keys are sorted, nulls in objects left out, and 1.0 is written as 1.

    So older rows keep their split when a column is added, or when it becomes double.
    """
    return _ENCODER.encode(_canonical(value))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


def _canonical(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value

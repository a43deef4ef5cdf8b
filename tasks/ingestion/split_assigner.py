"""Which split a row of the source goes to: a hash of its content decides, or of the columns by which rows belong together."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.shards.split_rows import as_text, group_values_of_row

_ZEROS = re.compile(r"^(-?\d+)(?:\.0+|(\.\d*[1-9])0+)$")
"""A number with zeros at its end: integers beside numbers with decimals have one, and a file of numbers is read without those it writes."""


@dataclass(frozen=True)
class SplitAssigner:
    """How the rows of one split of the source are divided."""

    source_split: str
    """Where rows go that `shares` sends nowhere else."""
    shares: Mapping[str, float]
    """The share of the rows for each split that the source lacks."""
    group_by: Sequence[str]
    """The columns by which rows belong together; empty if each row is on its own."""
    seed: int
    group_as_text: Sequence[str] = ()
    """Those columns of `group_by` that have several types, and are read as text."""

    def of(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the split of each row."""
        if not self.shares:
            return [self.source_split] * len(rows)
        return [assign_split(self._group(row) or row, self.shares, self.seed) for row in rows]

    def _group(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        if group := group_values_of_row(row, self.group_by):
            texts = {name: as_text(group[name]) for name in self.group_as_text}
            group |= {name: text and _ZEROS.sub(r"\1\2", text) for name, text in texts.items()}
        return group


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

"""Lengths of the rows of the sample in tokens, as training will see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tasks.scaffold.look import Row
from tasks.tokenization.encoding import Encoder
from tasks.tokenization.tokenizers import NO_LIMIT
from trainer.objectives.bases.objective import Example

MEASURED_ROWS: Final = 5_000
"""The most rows that are tokenized for their lengths."""
_BATCH_ROWS: Final = 500


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens, one for each row."""

    inputs: list[int]
    targets: list[int]
    """Of second texts, such as translations; empty without them."""

    @property
    def mean(self) -> float:
        """Mean length of a row."""
        return sum(self.inputs) / len(self.inputs)


def encoded(rows: Sequence[Row], encoder: Encoder) -> Iterator[list[Example]]:
    """Yield the training sequences of each row; none for a row that cannot be encoded."""
    lenient = replace(encoder, marks_rows=True)
    numbered = [{**row, "row_id": i} for i, row in enumerate(rows)]
    for start in range(0, len(numbered), _BATCH_ROWS):
        yield from (row.examples for row in lenient.encode(numbered[start : start + _BATCH_ROWS]))


def lengths(rows: Sequence[Row], encoder: Encoder) -> Lengths:
    """Return the whole lengths of the rows in tokens, special tokens included."""
    every = max(1, len(rows) // MEASURED_ROWS)
    objective, inputs, targets = encoder.objective, [], []
    for examples in encoded(rows[::every], replace(encoder, max_length=NO_LIMIT)):
        if not examples:
            continue
        inputs.append(sum(map(objective.length, examples)))
        if objective.has_target_text:
            targets.append(max(len(example["labels"]) for example in examples))
    return Lengths(inputs, targets)

"""What the tokenize stage reports."""

from __future__ import annotations

from typing import ClassVar

from tasks.stages import Report


class SplitStatistics(Report):
    """Counts of one split; lengths are in tokens."""

    rows: int
    sequences: int
    tokens: int
    longest: int
    mean_length: float
    learned_tokens: int
    """Tokens that the loss is computed on; for classification, one per sequence."""
    truncated_rows: int
    """Rows that are not encoded in full: some of their text, or a label, does not fit into `max_length`."""
    unused_rows: int
    """Rows that give no sequence, because the loss would be computed on none of their first `max_length` tokens."""

    @property
    def is_whole(self) -> bool:
        """Whether each row is one sequence, with all of its tokens."""
        return self.sequences == self.rows and not self.truncated_rows


class TokenizationReport(Report):
    saved_as: ClassVar[str] = "tokenize"
    vocab_size: int
    max_length: int
    characters_per_token: float
    """Characters of the train split's text per token."""
    splits: dict[str, SplitStatistics]

    @property
    def summary(self) -> str:
        return (
            ", ".join(f"{split} {one.tokens:,} in {one.sequences:,}" for split, one in self.splits.items())
            + " sequences"
        )

"""Padding: sequences of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

IGNORE_INDEX = -100
"""The label of a position that has no loss; transformers and `torch.nn.functional.cross_entropy` use the same value."""


def pad(sequences: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Return B sequences as one (B, T) tensor, filled with `value` on the right."""
    import torch

    longest = max(map(len, sequences))
    return torch.tensor(
        [[*sequence, *[value] * (longest - len(sequence))] for sequence in sequences], dtype=torch.int64
    )


def pad_batch(examples: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Return `input_ids`, `attention_mask` (B, T) and `labels` of a batch; labels are (B, T), or (B,) for classes."""
    import torch

    ids, labels = [e["input_ids"] for e in examples], [e["labels"] for e in examples]
    return {
        "input_ids": pad(ids, tokenizer.pad_token_id),
        "attention_mask": pad([[1] * len(row) for row in ids], 0),
        "labels": pad(labels, IGNORE_INDEX) if isinstance(labels[0], list) else torch.tensor(labels),
    }

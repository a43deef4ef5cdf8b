"""Texts as tokens, many per call: a tokenizer works on them in parallel, and a call for each costs more than its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase


def encoding_of(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, add_special_tokens: bool = True
) -> BatchEncoding:
    """Return the whole texts as a BatchEncoding with `input_ids` only; its methods know the place of each token."""
    return tokenizer(
        list(texts),
        add_special_tokens=add_special_tokens,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )


def token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, add_special_tokens: bool = True
) -> list[list[int]]:
    """Return the tokens of each whole text."""
    ids: list[list[int]] = encoding_of(texts, tokenizer, add_special_tokens=add_special_tokens)["input_ids"]
    return ids


def truncated_token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[tuple[list[int], bool]]:
    """Return at most `max_length` tokens of each text, special tokens included, and whether it has more."""
    encoding = tokenizer(
        list(texts),
        truncation=True,
        max_length=max_length,
        return_overflowing_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    found: list[tuple[list[int], bool]] = []
    for ids, text_index in zip(encoding["input_ids"], encoding["overflow_to_sample_mapping"], strict=True):
        if text_index == len(found):
            found.append((ids, False))
        else:  # what does not fit follows as further sequences of the same text
            found[text_index] = (found[text_index][0], True)
    return found

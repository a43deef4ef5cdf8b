"""Texts as tokens, many per call: a tokenizer works on them in parallel, and a call for each costs more than its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Encoding
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
    found = fast_encodings(texts, tokenizer, add_special_tokens=add_special_tokens, verbose=False)
    return [encoding.ids for encoding in found]


def first_token(encoding: Encoding, place: int, size: int) -> int:
    """Return which token is the first with a character of a text of `size` characters at `place` or later."""
    for character in range(place, size):
        if (token := encoding.char_to_token(character)) is not None:
            return token
    return len(encoding)


def truncated_token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[tuple[list[int], bool]]:
    """Return at most `max_length` tokens of each text, special tokens included, and whether it has more."""
    found = fast_encodings(texts, tokenizer, truncation=True, max_length=max_length)
    return [(ids := encoding.ids, len(ids) == max_length and bool(encoding.overflowing)) for encoding in found]


def fast_encodings(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, add_special_tokens: bool = True, **options: Any
) -> list[Encoding]:
    """Return the encoding of each text without offsets, which take a fifth of the time; `options` are the tokenizer's."""
    tokenizer(texts[0], add_special_tokens=add_special_tokens, **options)  # passes the options on to its backend
    found: list[Encoding] = tokenizer.backend_tokenizer.encode_batch_fast(
        list(texts), add_special_tokens=add_special_tokens
    )
    return found

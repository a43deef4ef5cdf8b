"""Texts that continue others, as tokens: the answer to a prompt.

A prompt always has the tokens that it has alone, because at inference it is alone. Its answer has the tokens of the text that both make. So no answer
gets the space that many tokenizers (those of SentencePiece's kind) write before each text.

If a token of the whole text is of both, as ` It` in `Answer: ` and `It`, no model could write it behind the prompt. Then the answer has the tokens that it has
behind some other character. With the prompt's, they still say the whole text, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from trainer.objectives.bases.lazy_imports import Encoding
from trainer.objectives.bases.texts.tokenizing import (
    Tokenizer,
    backend_with_whole_offsets,
    begins_at,
    encode_texts,
    first_token_at_character,
    tokenize_prompts,
    tokenize_texts,
)

_IN_WORDS = ("z", "1", "q", "\n", ".")
_BETWEEN_WORDS = ("\n", ".", "z", "1", "q")
"""Characters of which some is a token by itself before any text. A text that goes on with a word is best behind another one of a word."""


def tokenize_continuations(
    prompts: Sequence[str],
    prompt_ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    add_special_tokens: bool = True,
) -> list[list[int]]:
    """Return the tokens of each text behind its prompt, of which `prompt_ids` are the tokens, special tokens included or not."""
    both = [f"{prompt}{text}" for prompt, text in zip(prompts, texts, strict=True)]
    whole = (
        tokenize_prompts(both, tokenizer)
        if add_special_tokens
        else tokenize_texts(both, tokenizer, add_special_tokens=False)
    )
    found: list[list[int]] = []
    crossed = list[int]()
    for i, (ids, before) in enumerate(zip(whole, prompt_ids, strict=True)):
        found.append(ids[len(before) :])
        if len(ids) == len(before) or ids[: len(before)] != [*before]:
            crossed.append(i)
    behind_others = tokenize_behind_characters([prompts[i] for i in crossed], [texts[i] for i in crossed], tokenizer)
    for i, own in zip(crossed, behind_others, strict=True):
        found[i] = own
    return found


def tokenize_behind_characters(befores: Sequence[str], texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the tokens of each text behind a character that is a token by itself: if possible, the last one of what stands before the text.

    It may also be a special token. The tokens are those of a text alone, if there is no such character, or nothing stands before it.
    """
    found = dict[int, list[int]]()
    for tried in zip(*(_characters_before(before, tokenizer) for before in befores), strict=True):
        left = [i for i, before in enumerate(befores) if before and i not in found]
        encoded = _encode([f"{tried[i]}{texts[i]}" for i in left], tokenizer) if left else ()
        for i, one in zip(left, encoded, strict=True):
            place = len(tried[i])
            first = first_token_at_character(one, place, place + len(texts[i]))
            if begins_at(one, first, place):
                found[i] = one.ids[first:]
    alone = [i for i in range(len(texts)) if i not in found]
    of_alone = tokenize_texts([texts[i] for i in alone], tokenizer, add_special_tokens=False) if alone else ()
    found |= zip(alone, of_alone, strict=True)
    return [found[i] for i in range(len(texts))]


def _characters_before(before: str, tokenizer: Tokenizer) -> list[str]:
    """Return the characters, or the special token, to tokenize a text behind, the best one first."""
    special = next((token for token in _special_tokens(tokenizer) if before.endswith(token)), None)
    last = special or before[-1:]
    return [last, *(_IN_WORDS if last.isalnum() else _BETWEEN_WORDS)]


@lru_cache(maxsize=8)
def _special_tokens(tokenizer: Tokenizer) -> list[str]:
    found = (str(token.content) for token in tokenizer.added_tokens_decoder.values())
    return sorted(filter(None, found), key=len, reverse=True)


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> Sequence[Encoding]:
    """Return the encodings of texts, whose offsets have all white space, without special tokens."""
    backend = _backend(tokenizer)
    if backend is None:
        return encode_texts(texts, tokenizer, offsets=True, add_special_tokens=False)
    found: list[Encoding] = backend.encode_batch([*texts], add_special_tokens=False)
    return found


@lru_cache(maxsize=8)
def _backend(tokenizer: Tokenizer) -> Any:
    return backend_with_whole_offsets(tokenizer)

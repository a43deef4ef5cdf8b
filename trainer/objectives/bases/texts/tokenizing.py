"""Texts as tokens, many per call: a tokenizer works on them in parallel, and a call for each costs more than its text."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, Final, TypeAlias

from params import ModelError
from trainer.objectives.bases.lazy_imports import Encoding, NDArray, PreTrainedTokenizerBase, np

Tokenizer: TypeAlias = "PreTrainedTokenizerBase"
"""The tokenizer of a model, a fast one."""
TOKEN_TYPES: Final = "token_type_ids"  # noqa: S105
"""What says which of two texts each token is of, for a model whose tokenizer gives it that."""
MODEL_INPUTS: Final = ("input_ids", "attention_mask", TOKEN_TYPES)


def check_end_of_text_token(tokenizer: Tokenizer) -> None:
    """Raise a ModelError if a tokenizer has no token that ends a text, so that a model could not learn to stop."""
    if tokenizer.eos_token_id is None:
        raise ModelError("tokenization.tokenizer", "has no end-of-text token", "use one of a model that generates text")


READ_AT_END_OF_TEXT: Final = frozenset({"bart", "bigbird_pegasus", "mbart", "mt5", "mvp", "plbart", "t5", "umt5"})
"""Types of models whose head for whole texts reads a text at its end-of-text token, and fails without one."""

OTHER_TOKENIZER: Final = (
    "use the model's own tokenizer, if it ends each text with that token, or a model of another type, such as bert"
)


def why_end_is_not_found(end: int | None, ids: Sequence[int], padding: int | None) -> str:
    """Why such a head does not find the end of a text of these tokens; empty if it does."""
    if end is not None and end in ids and end != padding:
        return ""
    why = "which pads texts, too" if end is not None and end == padding else "which the tokenizer does not add"
    named = "" if end is None else f" ({end} in its configuration)"
    return f"the model's head reads a text at the end-of-text token{named}, {why}"


def tokenize_texts(texts: Sequence[str], tokenizer: Tokenizer, *, add_special_tokens: bool = True) -> list[list[int]]:
    """Return the tokens of each whole text."""
    return [encoding.ids for encoding in encode_texts(texts, tokenizer, add_special_tokens=add_special_tokens)]


def strip_repeated_special_tokens(
    texts: Iterable[str], tokenizer: Tokenizer, *, begins: bool = True, ends: bool = False
) -> list[str]:
    """Return texts without the tokens of begin and end of text that they write themselves, where they get one anyway.

    With `begins`, the tokenizer may add one at the beginning; with `ends`, the caller adds one at the end.
    """
    adds_begin, adds_end = _added_special_tokens(tokenizer)
    begin = tokenizer.bos_token if begins and adds_begin else None
    end = tokenizer.eos_token if ends or adds_end else None

    def strip(text: str) -> str:
        while begin and text.startswith(begin):
            text = text.removeprefix(begin)
        while end and text.rstrip().endswith(end):
            text = text.rstrip().removesuffix(end)
        return text

    return [*map(strip, texts)]


def end_texts(texts: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Return texts that a tokenizer ends with one end-of-text token, if it has such a token: it is written, unless the tokenizer adds it."""
    end = "" if _added_special_tokens(tokenizer)[1] else tokenizer.eos_token or ""
    return [f"{text}{end}" for text in strip_repeated_special_tokens(texts, tokenizer, ends=True)]


def tokenize_prompts(texts: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the tokens of prompts, without the end-of-text token that some tokenizers add to every text."""
    found = tokenize_texts(strip_repeated_special_tokens(texts, tokenizer), tokenizer)
    return [ids[:-1] for ids in found] if _added_special_tokens(tokenizer)[1] else found


def _added_special_tokens(tokenizer: Tokenizer) -> tuple[bool, bool]:
    """Whether a tokenizer adds a token to the beginning, and to the end, of every text."""
    ids = encode_texts(["a"], tokenizer)[0].ids
    return bool(ids) and ids[0] == tokenizer.bos_token_id, bool(ids) and ids[-1] == tokenizer.eos_token_id


def first_token_at_character(encoding: Encoding, place: int, size: int) -> int:
    """Return which token is the first with a character of a text of `size` characters at `place` or later."""
    for character in range(place, size):
        if (token := encoding.char_to_token(character)) is not None:
            return token
    return len(encoding)


def begins_at(encoding: Encoding, token: int, place: int) -> bool:
    """Whether no part of a token is before a place in the text."""
    return token == len(encoding) or (encoding.token_to_chars(token) or (0, 0))[0] >= place


def count_bytes_of_tokens(tokenizer: Tokenizer) -> NDArray[np.int64] | None:
    """Return how many bytes (UTF-8) of a text each token is, (V,); None if a tokenizer may add to a text, or replace some of it."""
    backend = tokenizer.backend_tokenizer
    model, form = backend.model, json.loads(backend.pre_tokenizer.__getstate__()) if backend.pre_tokenizer else {}
    steps = form.get("pretokenizers", [form])
    replaces = backend.normalizer or any(step.get("add_prefix_space") for step in steps)
    names = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if replaces or steps[-1].get("type") != "ByteLevel" or any(getattr(model, name, True) for name in names):
        return None
    own = {number: len(token) for token, number in backend.get_vocab(with_added_tokens=False).items()}
    own |= {number: len(one.content.encode()) for number, one in backend.get_added_tokens_decoder().items()}
    found = np.zeros(max(own) + 1, np.int64)
    found[[*own]] = [*own.values()]
    return found


def first_tokens_by_bytes(
    ids: Sequence[list[int]], texts: Sequence[str], places: Sequence[list[int]], sizes: NDArray[np.int64]
) -> list[dict[int, int] | None]:
    """Return for each text which token begins at each of its places, if any; None if its tokens leave some of it out.

    `sizes` are those of `count_bytes_of_tokens`. This saves the tokenizer the offsets.
    """
    ends = [0, *accumulate(map(len, ids))]
    tokens = np.fromiter(chain.from_iterable(ids), np.int64, ends[-1])
    starts = np.concatenate([[0], np.cumsum(sizes[tokens])])  # of each token, in the bytes of all texts
    bases = starts[ends].tolist()
    wanted: list[list[int]] = []
    for text, own, base, stop in zip(texts, places, bases, bases[1:], strict=False):
        if text.isascii():
            wanted.append([base + place for place in own] if len(text) == stop - base else [])
        else:
            is_whole = len(text.encode()) == stop - base
            wanted.append([base + len(text[:place].encode()) for place in own] if is_whole else [])
    every = np.fromiter(chain.from_iterable(wanted), np.int64)
    first = np.searchsorted(starts, every)
    first[starts[first] != every] = -1
    found = iter(first.tolist())
    return [
        {place: token - begin for place, token in zip(own, found, strict=False) if token >= 0}
        if in_bytes or not own
        else None
        for own, in_bytes, begin in zip(places, wanted, ends, strict=False)
    ]


def tokenize_texts_truncated(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, *, add_special_tokens: bool = True
) -> list[tuple[list[int], bool]]:
    """Return at most `max_length` tokens of each text, special tokens included, and whether it has more."""
    found = encode_texts(
        texts, tokenizer, add_special_tokens=add_special_tokens, truncation=True, max_length=max_length
    )
    return [(ids := encoding.ids, len(ids) == max_length and bool(encoding.overflowing)) for encoding in found]


def encode_texts(
    texts: Sequence[str | tuple[str, str]],
    tokenizer: Tokenizer,
    *,
    offsets: bool = False,
    add_special_tokens: bool = True,
    **options: Any,
) -> list[Encoding]:
    """Return the encoding of each of one or more texts, or pairs of them; the tokenizer's call would copy all of it to Python's lists, too.

    With `offsets`, the encodings know the place of each token in its text, which takes a fifth of the time. `options` are
    those of the tokenizer, for example truncation.
    """
    # Passes the options on to the backend.
    tokenizer(texts[0], add_special_tokens=add_special_tokens, verbose=False, **options)
    backend = tokenizer.backend_tokenizer
    encode = backend.encode_batch if offsets else backend.encode_batch_fast
    found: list[Encoding] = encode(list(texts), add_special_tokens=add_special_tokens)
    return found


def gives_types(tokenizer: Tokenizer) -> bool:
    return TOKEN_TYPES in tokenizer.model_input_names


def types_of_single_texts(texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the types of the tokens of texts that are read alone, as a pipeline gives them; nothing if all are 0, as a model takes them without.

    The last token of XLNet has a type of its own, and so has Funnel's first one.
    """
    front, back = _typed_special_tokens(tokenizer) if gives_types(tokenizer) else ([], [])
    if not front + back:
        return []
    found = []
    for ids in texts:
        first, last = len(front), len(ids) - len(back)
        is_framed = [*ids[:first], *ids[last:]] == [token for token, _ in front + back]
        kinds = [kind for _, kind in front], [kind for _, kind in back]
        found.append([*kinds[0], *[0] * (last - first), *kinds[1]] if is_framed else [0] * len(ids))
    return found


@lru_cache(maxsize=8)
def _typed_special_tokens(tokenizer: Tokenizer) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the special tokens before and behind every text, with their types; none if all types are 0."""
    (found,) = encode_texts(["a"], tokenizer)
    if not any(found.type_ids):
        return [], []
    places, tokens = found.sequence_ids, list(zip(found.ids, found.type_ids, strict=True))
    return tokens[: places.index(0)], tokens[len(places) - places[::-1].index(0) :]


def backend_with_whole_offsets(tokenizer: Tokenizer) -> Any:
    """Return a copy of a tokenizer's backend whose offsets include the white space of a token; None if its own do.

    That of GPT-2 and Llama 3 leaves it out in its last step, which has no other effect without special tokens.
    """
    (encoding,) = encode_texts(["a b"], tokenizer, offsets=True, add_special_tokens=False)
    covered = {character for start, stop in encoding.offsets for character in range(start, stop)}
    if not covered:
        what = "does not say which characters its tokens are of, so the assistant's cannot be found"
        raise ModelError(
            "tokenization.tokenizer", what, "use a fast tokenizer with offsets, as tokenizer.json has them"
        )
    if 1 in covered:
        return None
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.post_processor = None
    return backend


def generate_tokens_checking_prompt(
    ask: Callable[..., Any], prompt: Any, example: Mapping[str, Any], tokenizer: Tokenizer, **arguments: Any
) -> list[int]:
    """Ask a release for text by `Objective.answer_scores`, and return the tokens that it generates: one without `arguments`.

    ValueError if the evaluated `example` does not begin with the tokens that the call makes of the prompt.
    """
    if isinstance(prompt, str):
        (prompt,) = strip_repeated_special_tokens([prompt], tokenizer)
    *ids, first = ask(prompt, max_new_tokens=1)
    if ids != list(example["input_ids"][: len(ids)]):
        raise ValueError("the call on the card gives the model other tokens of the prompt than the evaluation did")
    return list(ask(prompt, **arguments)[len(ids) :]) if arguments else [first]

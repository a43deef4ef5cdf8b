"""Conversations, lists of {role, content}, as tokens: rendered by a chat template, with a mask of the assistant's tokens.

If the template marks generated text with {% generation %}, that is the assistant's. Otherwise the assistant's text is what
each of its turns adds to the rendering of the turns before it, which must not change when the turn is added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")


def reject_reason(turns: Any) -> str | None:
    """Return why nothing can be learned from a conversation, or None."""
    for i, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(k), str) for k in ("role", "content")):
            return f"message {i} is not {{role, content}} with text in both"
        if turn["role"] == "assistant" and not turn["content"].strip():
            return f"message {i}, of the assistant, is empty"
    if not any(turn["role"] == "assistant" for turn in turns):
        return "no message is the assistant's, so there is nothing to learn"
    return None


def tokenize_conversation(
    turns: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation, and which of them are the assistant's, the end of each turn included.

    Raises ValueError if the template renders the beginning of a conversation differently once more turns follow.
    """
    if _GENERATION_TAG.search(str(tokenizer.chat_template)):
        encoding = tokenizer.apply_chat_template(
            turns, return_dict=True, return_assistant_tokens_mask=True, tokenizer_kwargs={"verbose": False}
        )
        ids, is_assistant = list(encoding["input_ids"]), [bool(value) for value in encoding["assistant_masks"]]
    else:
        ids, is_assistant = _tokenize_spans(*_render(turns, tokenizer), tokenizer)
    end = tokenizer.eos_token_id
    for i in range(1, len(ids)):
        is_assistant[i] = is_assistant[i] or (is_assistant[i - 1] and ids[i] == end != ids[i - 1])
    last = max((i for i, value in enumerate(is_assistant) if value), default=-1)
    first = next((i for i in range(last, -1, -1) if not is_assistant[i]), -1) + 1
    if last >= 0 and turns[-1]["role"] == "assistant" and end not in ids[first : last + 1]:
        return [*ids, end], [*is_assistant, True]
    return ids, is_assistant


def _render(
    turns: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a conversation, and the spans of characters that are the assistant's."""

    def render(count: int, *, prompt: bool = False) -> str:
        text: str = tokenizer.apply_chat_template(turns[:count], tokenize=False, add_generation_prompt=prompt)
        return text

    whole, spans = render(len(turns)), []
    for i, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        before, after = render(i, prompt=True), render(i + 1)
        if not (whole.startswith(after) and after.startswith(before)):
            what = f"the chat template renders the messages before message {i} differently when it follows"
            raise ValueError(f"{what}, so its tokens cannot be found: mark them with {{% generation %}}")
        spans.append((len(before), len(after)))
    return whole, spans


def _tokenize_spans(
    text: str, spans: Sequence[tuple[int, int]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a text, and which of them are inside the spans.

    No token crosses the start of a span, because none does at inference: there the prompt is tokenized alone.
    """
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = encoding["offset_mapping"]
    if not any(start < a < end for a, _ in spans for start, end in offsets):
        return list(encoding["input_ids"]), [any(a < end <= b for a, b in spans) for _, end in offsets]
    ids: list[int] = []
    in_span: list[bool] = []
    cuts = [0, *(place for span in spans for place in span), len(text)]
    for number, (a, b) in enumerate(pairwise(cuts)):
        piece = tokenizer(text[a:b], add_special_tokens=False, verbose=False)["input_ids"]
        ids += piece
        in_span += [number % 2 == 1] * len(piece)
    return ids, in_span

"""Conversations, lists of {role, content}, as tokens: rendered by a chat template, and which of them the assistant says.

Where the template marks what is generated, that is what the assistant says. Elsewhere it is what each turn of the assistant
adds to what the template renders for the turns before, which must stay as it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")


def reject_reason(turns: Any) -> str | None:
    """Why nothing can be learned from a conversation."""
    for i, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(k), str) for k in ("role", "content")):
            return f"message {i} is not {{role, content}} with text in both"
        if turn["role"] == "assistant" and not turn["content"].strip():
            return f"message {i}, of the assistant, is empty"
    if not any(turn["role"] == "assistant" for turn in turns):
        return "no message is the assistant's, so there is nothing to learn"
    return None


def tokens(turns: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[bool]]:
    """Tokens of a whole conversation, and which of them the assistant says, the end of each turn included.

    Raises:
        ValueError: the template renders the beginning of a conversation differently once it goes on.
    """
    if _MARKED.search(str(tokenizer.chat_template)):
        made = tokenizer.apply_chat_template(
            turns, return_dict=True, return_assistant_tokens_mask=True, tokenizer_kwargs={"verbose": False}
        )
        ids, learned = list(made["input_ids"]), [bool(said) for said in made["assistant_masks"]]
    else:
        ids, learned = _divided(*_rendered(turns, tokenizer), tokenizer)
    end = tokenizer.eos_token_id
    for i in range(1, len(ids)):
        learned[i] = learned[i] or (learned[i - 1] and ids[i] == end != ids[i - 1])
    last = max((i for i, said in enumerate(learned) if said), default=-1)
    first = next((i for i in range(last, -1, -1) if not learned[i]), -1) + 1
    if last >= 0 and turns[-1]["role"] == "assistant" and end not in ids[first : last + 1]:
        return [*ids, end], [*learned, True]
    return ids, learned


def _rendered(
    turns: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and from where to where in it the assistant speaks.

    Raises:
        ValueError: the template renders the beginning of a conversation differently once it goes on.
    """

    def render(count: int, *, asked: bool = False) -> str:
        text: str = tokenizer.apply_chat_template(turns[:count], tokenize=False, add_generation_prompt=asked)
        return text

    whole, spans = render(len(turns)), []
    for i, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        before, after = render(i, asked=True), render(i + 1)
        if not (whole.startswith(after) and after.startswith(before)):
            what = f"the chat template renders the messages before message {i} differently when it follows"
            raise ValueError(f"{what}, so that its tokens cannot be told: mark them with {{% generation %}}")
        spans.append((len(before), len(after)))
    return whole, spans


def _divided(
    text: str, spans: Sequence[tuple[int, int]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]]:
    """Tokens of a text, and which of them lie in the spans; none lies in both, as when the model is asked."""
    made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    places = made["offset_mapping"]
    if not any(start < a < end for a, _ in spans for start, end in places):
        return list(made["input_ids"]), [any(a < end <= b for a, b in spans) for _, end in places]
    ids: list[int] = []
    learned: list[bool] = []
    cuts = [0, *(place for span in spans for place in span), len(text)]
    for number, (a, b) in enumerate(pairwise(cuts)):
        piece = tokenizer(text[a:b], add_special_tokens=False, verbose=False)["input_ids"]
        ids += piece
        learned += [number % 2 == 1] * len(piece)
    return ids, learned

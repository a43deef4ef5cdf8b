"""Pairs of completions in the forms that people have them: beside a prompt, or as whole texts or conversations that begin alike."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from trainer.objectives.bases.chat import ConversationTokenizer
from trainer.objectives.bases.messages import read_turns

_QUESTION, _ANSWER = "\n\nHuman:", "\n\nAssistant:"
"""Stand before each turn in texts such as those of hh-rlhf."""


class PreferencePair(NamedTuple):
    """A prompt with two completions: texts, or lists of messages."""

    prompt: Any
    chosen: Any
    rejected: Any


def read_texts(prompt: Any, chosen: Any, rejected: Any) -> PreferencePair:
    """Return a pair of texts; without a prompt, None, it is their turns up to the last `Assistant:` that both have.

    Raises:
        ValueError: nothing says where the prompt ends, or more than an answer follows it.
    """
    chosen, rejected = str(chosen), str(rejected)
    if prompt is not None:
        return PreferencePair(str(prompt), chosen, rejected)
    place = chosen[: _shared(chosen, rejected)].rfind(_ANSWER)
    if place < 0:
        what = "chosen and rejected do not begin with the same turns"
        raise ValueError(f"{what}, of which the last one is {_ANSWER!r}: so nothing says where the prompt ends")
    size = place + len(_ANSWER)
    for name, answer in (("chosen", chosen[size:]), ("rejected", rejected[size:])):
        if not answer.strip() or _ANSWER in answer or _QUESTION in answer:
            what = "says nothing" if not answer.strip() else "has more than an answer"
            raise ValueError(f"behind what chosen and rejected have in common, {name} {what}")
    return PreferencePair(chosen[:size], chosen[size:], rejected[size:])


def read_conversations(prompt: Any, chosen: Any, rejected: Any) -> PreferencePair:
    """Return a pair of messages, whether the conversations are whole or behind a prompt; ValueError if it has no two answers."""
    prompt, chosen, rejected = read_turns(prompt or ()), read_turns(chosen), read_turns(rejected)
    if chosen[: len(prompt)] == rejected[: len(prompt)] == prompt:
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    shared = _shared(chosen, rejected)
    pair = PreferencePair([*prompt, *chosen[:shared]], chosen[shared:], rejected[shared:])
    for name, turns in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if others := [turn["role"] for turn in turns if turn["role"] != "assistant"]:
            raise ValueError(f"behind what chosen and rejected have in common, {name} has a message of {others[0]}")
        if not any(turn["content"].strip() or turn.get("tool_calls") for turn in turns):
            raise ValueError(f"behind what chosen and rejected have in common, {name} says nothing")
    if not pair.prompt:
        raise ValueError("chosen and rejected do not begin with the same messages, so there is no prompt")
    return pair


def begin_with_prompt(chosen: Any, rejected: Any) -> bool:
    """Whether two completions are whole conversations that begin with the prompt of both."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return bool((read_texts if isinstance(chosen, str) else read_conversations)(None, chosen, rejected))
    return False


def render_pair(pair: PreferencePair, tokenizer: ConversationTokenizer) -> PreferencePair:
    """Return a pair of messages as texts; ValueError if the template refuses them."""
    prompt, chosen = tokenizer.prompt_and_answer(pair.prompt, pair.chosen)
    return PreferencePair(prompt, chosen, tokenizer.prompt_and_answer(pair.prompt, pair.rejected)[1])


def as_text(part: Any) -> str:
    """Return a text, or what messages say."""
    return part if isinstance(part, str) else "\n".join(f"{turn['role']}: {turn['content']}" for turn in part)


def _shared(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Return how many characters or messages both begin with."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))])

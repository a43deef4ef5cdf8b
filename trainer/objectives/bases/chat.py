"""Conversations, lists of {role, content}, as tokens: rendered by a chat template, with a mask of the assistant's tokens.

If the template marks generated text with {% generation %}, that is the assistant's. Otherwise the assistant's text is what
each of its turns adds to the rendering of the turns before it, which must not change when the turn is added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

from jinja2 import TemplateError

from trainer.objectives.bases.lazy_imports import np
from trainer.objectives.bases.padding import IGNORE_INDEX
from trainer.objectives.bases.texts import Tokenizer, encode_texts, first_token_at_character, tokenize_texts

Turns = Sequence[Mapping[str, Any]]
"""A conversation."""

_Frame = tuple[list[str], list[tuple[int, int] | None]]
"""What a template writes around messages: the texts before the first, between them and after the last one; and for each of the
assistant's messages, how many characters before and after it belong to its span."""

_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PLAIN = {"role", "content"}
_PRIVATE = re.compile("\ue000[0-9]+\ue001")


def conversation_template(tokenizer: Tokenizer) -> str | None:
    """Return the chat template that conversations are rendered with; of several, the one that is called `default`."""
    found: Any = tokenizer.chat_template
    return found.get("default") if isinstance(found, Mapping) else found


def why_conversation_unusable(turns: Any) -> str | None:
    """Return why nothing can be learned from a conversation, or None."""
    for i, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(k), str) for k in ("role", "content")):
            return f"message {i} is not {{role, content}} with text in both"
        if turn["role"] == "assistant" and not turn["content"].strip():
            return f"message {i}, of the assistant, is empty"
    if not any(turn["role"] == "assistant" for turn in turns):
        return "no message is the assistant's, so there is nothing to learn"
    return None


class ConversationTokenizer:
    """Tokenizes conversations, and remembers what the template writes around the messages of each sequence of roles."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._frames: dict[tuple[str, ...], _Frame | None] = {}

    def tokenize(self, conversations: Sequence[Turns]) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of each conversation, and its labels: the assistant's tokens, the end of each turn included.

        Raises ValueError if the template refuses a conversation, or renders its beginning differently once more turns
        follow.
        """
        if not all(conversations):
            raise ValueError("the conversation is empty")
        marked = _GENERATION_TAG.search(conversation_template(self.tokenizer) or "")
        try:
            found = list(self._tokenize_marked(conversations) if marked else self._tokenize_spans(conversations))
        except TemplateError as error:
            raise ValueError(f"the chat template refuses the conversation: {error}") from error
        end, labelled = self.tokenizer.eos_token_id, []
        for turns, (ids, spans) in zip(conversations, found, strict=True):
            labels = [IGNORE_INDEX] * len(ids)
            run: Sequence[int] = []  # the assistant's last tokens without a gap
            for begin, stop in (span for span in spans if span[0] < span[1]):
                has_end = stop < len(ids) and ids[stop] == end and ids[stop - 1] != end
                labels[begin : stop + has_end] = ids[begin : stop + has_end]
                joined = begin > 0 and labels[begin - 1] != IGNORE_INDEX
                run = [*(run if joined else ()), *ids[begin : stop + has_end]]
            is_open = bool(run) and turns[-1]["role"] == "assistant" and end not in run
            added = [end] if is_open else []
            labelled.append((ids + added, labels + added))
        return labelled

    def _tokenize_marked(self, conversations: Sequence[Turns]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """Yield the tokens of each conversation, and the spans of tokens that the template marks as the assistant's."""
        encoding = self.tokenizer.apply_chat_template(
            list(conversations),
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"verbose": False},
        )
        for ids, mask in zip(encoding["input_ids"], encoding["assistant_masks"], strict=True):
            edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)).tolist()
            yield ids, list(zip(edges[::2], edges[1::2], strict=True))

    def _tokenize_spans(self, conversations: Sequence[Turns]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """Yield the tokens of each conversation, and the spans of tokens that are inside of the assistant's text.

        No token crosses the start of a span, because none does at inference: there the prompt is tokenized alone.
        """
        texts: list[str] = self.tokenizer.apply_chat_template(list(conversations), tokenize=False)
        found = encode_texts(texts, self.tokenizer, offsets=True, add_special_tokens=False)
        for turns, text, encoding in zip(conversations, texts, found, strict=True):
            spans = self._spans(turns, text)
            size = len(text)
            tokens = [
                (first_token_at_character(encoding, a, size), first_token_at_character(encoding, b, size))
                for a, b in spans
            ]
            if all(
                begin == len(encoding) or (encoding.token_to_chars(begin) or (0, 0))[0] >= start
                for (begin, _), (start, _) in zip(tokens, spans, strict=True)
            ):
                yield encoding.ids, tokens
                continue
            cuts = [0, *(place for span in spans for place in span), len(text)]
            pieces = tokenize_texts([text[a:b] for a, b in pairwise(cuts)], self.tokenizer, add_special_tokens=False)
            places = list(accumulate(map(len, pieces), initial=0))[1:]
            yield list(chain.from_iterable(pieces)), list(zip(places[::2], places[1::2], strict=False))

    def _spans(self, turns: Turns, text: str) -> list[tuple[int, int]]:
        """Return the spans of characters in a rendered conversation that are the assistant's.

        Rendering a conversation up to each of its turns takes time that grows with the square of their number. So this
        is done once per sequence of roles, with placeholders as messages. A conversation that differs from its rendering
        in nothing but the messages has its spans at the same places.
        """
        if any(turn.keys() != _PLAIN and {k for k, v in turn.items() if v is not None} != _PLAIN for turn in turns):
            return self._rendered_spans(turns, text)
        roles = tuple(turn["role"] for turn in turns)
        if roles not in self._frames:
            self._frames[roles] = self._frame(roles)
        if (frame := self._frames[roles]) is None:
            return self._rendered_spans(turns, text)
        texts, margins = frame
        pieces, spans, start = [texts[0]], [], len(texts[0])
        for turn, margin, after in zip(turns, margins, texts[1:], strict=True):
            end = start + len(turn["content"])
            if margin:
                spans.append((start - margin[0], end + margin[1]))
            pieces += turn["content"], after
            start = end + len(after)
        return spans if "".join(pieces) == text else self._rendered_spans(turns, text)

    def _rendered_spans(self, turns: Turns, text: str) -> list[tuple[int, int]]:
        """Return what each of the assistant's turns adds to the rendering of the turns before it, as spans of `text`."""
        spans = []
        for i, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            before = self._render(turns[:i], prompt=True)
            after = text if i + 1 == len(turns) else self._render(turns[: i + 1])
            if not (text.startswith(after) and after.startswith(before)):
                what = f"the chat template renders the messages before message {i} differently when it follows"
                raise ValueError(f"{what}, so its tokens cannot be found: mark them with {{% generation %}}")
            spans.append((len(before), len(after)))
        return spans

    def _frame(self, roles: tuple[str, ...]) -> _Frame | None:
        """Return what the template writes around messages of these roles; None if the spans cannot be found by it."""
        messages = [f"\ue000{i}\ue001" for i in range(len(roles))]  # private characters, which templates do not write
        turns = [{"role": role, "content": message} for role, message in zip(roles, messages, strict=True)]
        try:
            text = self._render(turns)
            spans = iter(self._rendered_spans(turns, text))
        except (ValueError, TemplateError):
            return None
        if _PRIVATE.findall(text) != messages:
            return None
        places = [match.span() for match in _PRIVATE.finditer(text)]
        margins = []
        for role, (start, end) in zip(roles, places, strict=True):
            span = next(spans) if role == "assistant" else None
            margins.append(span and (start - span[0], span[1] - end))
        return _PRIVATE.split(text), margins

    def _render(self, turns: Turns, *, prompt: bool = False) -> str:
        text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)
        return text

"""Conversations, lists of {role, content}, as tokens: rendered by a chat template, with a mask of the assistant's tokens.

If the template marks generated text with {% generation %}, that is the assistant's. Otherwise the assistant's text is what
each of its turns adds to the rendering of the turns before it, which must not change when the turn is added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from trainer.objectives.bases.padding import IGNORE_INDEX
from trainer.objectives.bases.texts import encoding_of, token_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

Turns = Sequence[Mapping[str, Any]]
"""A conversation."""

_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PRIVATE = re.compile("\ue000[0-9]+\ue001")


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


class ConversationTokenizer:
    """Tokenizes conversations, and remembers what the template writes around the messages of each sequence of roles."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._frames: dict[tuple[str, ...], _Frame | None] = {}

    def tokenize(self, conversations: Sequence[Turns]) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of each conversation, and its labels: the assistant's tokens, the end of each turn included.

        Raises ValueError if the template refuses a conversation, or renders its beginning differently once more turns
        follow.
        """
        from jinja2 import TemplateError

        if not all(conversations):
            raise ValueError("the conversation is empty")
        try:
            return self._tokenize(conversations)
        except TemplateError as error:
            raise ValueError(f"the chat template refuses the conversation: {error}") from error

    def _tokenize(self, conversations: Sequence[Turns]) -> list[tuple[list[int], list[int]]]:
        import numpy as np

        marked = _GENERATION_TAG.search(str(self.tokenizer.chat_template))
        found = self._tokenize_marked(conversations) if marked else self._tokenize_spans(conversations)
        end, labelled = self.tokenizer.eos_token_id, []
        for turns, (ids, is_assistant) in zip(conversations, found, strict=True):
            tokens = np.array(ids, dtype=int)  # (T,)
            is_end = tokens == end
            is_assistant[1:] |= is_assistant[:-1] & is_end[1:] & ~is_end[:-1]
            labels = np.where(is_assistant, tokens, IGNORE_INDEX).tolist()
            places = np.flatnonzero(is_assistant)
            added = []
            if len(places) and turns[-1]["role"] == "assistant":
                outside = np.flatnonzero(~is_assistant[: places[-1]])
                first = outside[-1] + 1 if len(outside) else 0
                added = [] if is_end[first : places[-1] + 1].any() else [end]
            labelled.append((ids + added, labels + added))
        return labelled

    def _tokenize_marked(self, conversations: Sequence[Turns]) -> Iterator[tuple[list[int], NDArray[np.bool_]]]:
        """Yield the tokens of each conversation, and which of them the template marks as the assistant's, (T,)."""
        import numpy as np

        encoding = self.tokenizer.apply_chat_template(
            list(conversations),
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"verbose": False},
        )
        for ids, mask in zip(encoding["input_ids"], encoding["assistant_masks"], strict=True):
            yield ids, np.array(mask, dtype=bool)

    def _tokenize_spans(self, conversations: Sequence[Turns]) -> Iterator[tuple[list[int], NDArray[np.bool_]]]:
        """Yield the tokens of each conversation, and which of them are inside of the assistant's spans, (T,).

        No token crosses the start of a span, because none does at inference: there the prompt is tokenized alone.
        """
        import numpy as np

        texts: list[str] = self.tokenizer.apply_chat_template(list(conversations), tokenize=False)
        spans = [self._spans(turns, text) for turns, text in zip(conversations, texts, strict=True)]
        encoding = encoding_of(texts, self.tokenizer, add_special_tokens=False)
        for i, (text, ids) in enumerate(zip(texts, encoding["input_ids"], strict=True)):
            starts, ends = np.array(spans[i], dtype=int).reshape(-1, 2).T  # (S,) each, in order
            left, right = np.fromiter(chain.from_iterable(encoding[i].offsets), int).reshape(-1, 2).T  # (T,) each
            begun = np.searchsorted(starts, right)  # spans that start before the end of a token, (T,)
            if (begun <= np.searchsorted(starts, left, side="right")).all():
                yield ids, (begun > 0) & (right <= np.append(ends, 0)[begun - 1])
                continue
            cuts = [0, *(place for span in spans[i] for place in span), len(text)]
            pieces = token_ids([text[a:b] for a, b in pairwise(cuts)], self.tokenizer, add_special_tokens=False)
            sizes = [len(piece) for piece in pieces]
            yield [token for piece in pieces for token in piece], np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)

    def _spans(self, turns: Turns, text: str) -> list[tuple[int, int]]:
        """Return the spans of characters in a rendered conversation that are the assistant's.

        Rendering a conversation up to each of its turns takes time that grows with the square of their number. So this
        is done once per sequence of roles, with placeholders as messages. A conversation that differs from its rendering
        in nothing but the messages has its spans at the same places.
        """
        if any({key for key, value in turn.items() if value is not None} != {"role", "content"} for turn in turns):
            return self._rendered_spans(turns, text)
        roles = tuple(turn["role"] for turn in turns)
        if roles not in self._frames:
            self._frames[roles] = self._frame(roles)
        frame = self._frames[roles]
        spans = frame.spans([turn["content"] for turn in turns], text) if frame else None
        return self._rendered_spans(turns, text) if spans is None else spans

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
        from jinja2 import TemplateError

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
        return _Frame(_PRIVATE.split(text), margins)

    def _render(self, turns: Turns, *, prompt: bool = False) -> str:
        text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)
        return text


@dataclass(frozen=True)
class _Frame:
    """What a chat template writes around the messages of a conversation."""

    texts: list[str]
    """The texts before the first message, between messages, and after the last one."""
    margins: list[tuple[int, int] | None]
    """For each of the assistant's messages, how many characters before and after it belong to its span."""

    def spans(self, messages: Sequence[str], text: str) -> list[tuple[int, int]] | None:
        """Return the assistant's spans in a conversation rendered as `text`; None if it is not these texts and messages."""
        pieces, spans, start = [self.texts[0]], [], len(self.texts[0])
        for message, margin, after in zip(messages, self.margins, self.texts[1:], strict=True):
            end = start + len(message)
            if margin:
                spans.append((start - margin[0], end + margin[1]))
            pieces += message, after
            start = end + len(after)
        return spans if "".join(pieces) == text else None

"""How a model that gives answers a number reads a prompt with an answer: as one text, or as messages that its chat template renders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from params import ModelError
from params.sections.base import Section
from trainer.objectives.bases.conversations.chat import ConversationTokenizer
from trainer.objectives.bases.preferences.answers import as_text, render_answers
from trainer.objectives.bases.preferences.pairs import split_conversation
from trainer.objectives.bases.texts.tokenizing import Tokenizer, end_texts, tokenize_texts_truncated

KEY: Final = "answer_form"
"""The key of config.json with the form of a model that says how it reads."""
_PAIR: Final = {"prompt", "completion"}


class AnswerForm(Section):
    """How a prompt and an answer become what a model reads."""

    chat: bool = False
    """They are messages, which the tokenizer's chat template renders; else they are one text."""
    separator: str = ""
    """The text between a prompt and an answer that are texts."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> AnswerForm | None:
        """Return the form that a configuration names; None if it names none. ModelError if it is another one than those here."""
        if (given := config.get(KEY)) is None:
            return None
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            what = f"{KEY} in its config.json is {given}, of which {' and '.join(cls.model_fields)} are known"
            fix = "load it with the version of Evergreen that made it, or correct the file"
            raise ModelError(str(config.get("_name_or_path") or "the model"), what, fix) from error

    def texts(
        self, parts: Sequence[Any], tokenizer: Tokenizer, conversations: ConversationTokenizer | None
    ) -> list[str]:
        """Return what a model reads of a prompt with each of its answers, `parts`, which are texts or lists of messages.

        `conversations` renders messages by the tokenizer. ValueError if the chat template refuses them.
        """
        if conversations is None:
            prompt, *answers = map(as_text, parts)
            return end_texts([f"{prompt}{self.separator}{answer}" for answer in answers], tokenizer)
        prompt, *answers = render_answers(parts, conversations)
        return [f"{prompt}{answer}" for answer in answers]

    def tokenize(self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[tuple[list[int], bool]]:
        """Return at most `max_length` tokens of each of the `texts`, and whether it has more: then it loses its beginning."""
        return tokenize_texts_truncated(texts, tokenizer, max_length, **self.call_arguments)

    @property
    def call_arguments(self) -> dict[str, bool]:
        """How the tokenizer is called with one of the `texts`: a chat template has written the special tokens."""
        return {"add_special_tokens": False} if self.chat else {}

    def text_of_json(self, written: str, tokenizer: Tokenizer) -> str:
        """Return what a model reads of what somebody writes: `{"prompt": ..., "completion": ...}`, each a text or a list of messages.

        It may also be a whole conversation, or where texts are read, a whole text. ValueError if it is something else.
        """
        try:
            found = json.loads(written)
        except ValueError:
            found = written
        has_prompt = isinstance(found, dict) and found.keys() == _PAIR
        prompt, answer = (found["prompt"], found["completion"]) if has_prompt else ([], found)
        if not self.chat and not has_prompt:
            return end_texts([written], tokenizer)[0]
        if self.chat:
            prompt, answer = as_messages(prompt, "user"), as_messages(answer, "assistant")
        kind = list if self.chat else str
        if not isinstance(prompt, kind) or not isinstance(answer, kind):
            raise ValueError(  # noqa: TRY004
                f"prompt and completion are not both {'messages' if self.chat else 'texts'}"
            )
        parts = split_conversation(prompt, answer) if self.chat else (prompt, answer)
        (text,) = self.texts(parts, tokenizer, ConversationTokenizer(tokenizer) if self.chat else None)
        return text


def as_messages(part: Any, role: str) -> Any:
    """Return messages as they are, and a text as a message of `role`."""
    return [{"role": role, "content": part}] if isinstance(part, str) else part

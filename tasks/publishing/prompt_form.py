"""How a text is put to a published model: as its objective put the prompts that the model learned from."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class PromptForm:
    """What stands around a text in a prompt."""

    before: str = ""
    after: str = ""
    is_chat: bool = False
    """Whether the prompt is a user's message, which the chat template renders."""

    @classmethod
    def of(cls, objective: Mapping[str, Any] | None, *, has_template: bool) -> Self:
        """Return the form of a model that learned by `objective`, a section of a recipe; None if that is not known.

        `has_template`: the tokenizer has a chat template. A model of an unknown objective is then taken for a chat model.
        """
        known = objective or {}
        match known.get("name"):
            case "causal_lm" | "sequence_classification" | "token_classification":
                return cls()
            case "seq2seq":
                return cls(before=str(known.get("prefix", "")))
            case "dpo":
                return cls(after=str(known.get("separator", "")))
            case "sft":
                return cls(is_chat=has_template and bool(known.get("messages_column")))
            case "grpo" | "iterative_sft":
                before, after = _around(str(known.get("prompt", "")))
                return cls(before, after, is_chat=has_template and bool(known.get("chat")))
            case _:
                return cls(is_chat=has_template)

    def wrap(self, text: str) -> str:
        """Return a text with what stands around it."""
        return f"{self.before}{text}{self.after}"

    def prompt(self, text: str) -> str | list[dict[str, str]]:
        """Return the prompt with a text: a text itself, or a conversation."""
        return [{"role": "user", "content": self.wrap(text)}] if self.is_chat else self.wrap(text)


def _around(template: str) -> tuple[str, str]:
    """Return what a template has before and after its column; nothing if it has several, which one text cannot fill."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:  # a release may say anything
        return "", ""
    if sum(name is not None for _, name, _, _ in parts) != 1:
        return "", ""
    place = next(i for i, (_, name, _, _) in enumerate(parts) if name is not None)
    before, after = ("".join(text for text, *_ in some) for some in (parts[: place + 1], parts[place + 1 :]))
    return before, after

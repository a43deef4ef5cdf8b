"""How a text is put to a published model: as its objective put the prompts that the model learned from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptForm:
    """What stands around a text in a prompt."""

    before: str = ""
    after: str = ""
    is_chat: bool = False
    """Whether the prompt is a user's message, which the chat template renders."""

    def wrap(self, text: str) -> str:
        """Return a text with what stands around it."""
        return f"{self.before}{text}{self.after}"

    def prompt(self, text: str) -> str | list[dict[str, str]]:
        """Return the prompt with a text: a text itself, or a conversation."""
        return [{"role": "user", "content": self.wrap(text)}] if self.is_chat else self.wrap(text)

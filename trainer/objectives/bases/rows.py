"""Rows, and what an objective makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trainer.objectives.bases.lazy_imports import NDArray, np

Row = Mapping[str, Any]
"""One row of the validated data, by column: `{"row_id": 7, "text": "abc", "label": "greeting"}`."""

Example = dict[str, Any]
"""One tokenized sequence: `{"row_id": 7, "input_ids": [5, 9, 2], "labels": [-100, 9, 2]}`.

`labels` has one integer per token; or is one integer, the class; or one float, or a list of floats, such as 1.0 for each label that a
row has and 0.0 for the others; or there are none. Where a model reads several texts, further ones are called `<name>_input_ids`.
Further values are lists of integers, numbers or text. One row can become several examples.
"""


class EncodedRow(NamedTuple):
    """What becomes of one row."""

    examples: list[Example]
    is_truncated: bool = False
    """Whether the examples lack some of the row's content."""


ObjectiveState = Mapping[str, Any]
"""What an objective collected from the train split before tokenizing, as JSON: `{"labels": ["bye", "greeting"]}`."""

ScoreColumns = Mapping[str, "NDArray[np.float64]"]
"""Scores of N sequences or rows by name, each (N,): `{"nll": array([3.1, 0.4]), "tokens": array([8.0, 2.0])}`."""

ColumnKind = Literal["string", "optional", "label", "labels", "number", "records"]
"""What a column holds: text; text that may be missing or blank; one label, text or integer; a list of labels, which may be empty; a number; a list of records."""


@dataclass(frozen=True)
class PromptForm:
    """What stands around a text that is put to a published model, as around the prompts that it learned from."""

    before: str = ""
    after: str = ""
    is_chat: bool = False
    """Whether the prompt is a user's message, which the chat template renders."""
    template: str = ""
    """The template of several columns that prompts were made of, of which a text takes the place of the first."""

    def wrap(self, text: str) -> str:
        """Return a text with what stands around it."""
        return f"{self.before}{text}{self.after}"

    def prompt(self, text: str) -> str | list[dict[str, str]]:
        """Return the prompt with a text: a text itself, or a conversation."""
        return [{"role": "user", "content": self.wrap(text)}] if self.is_chat else self.wrap(text)

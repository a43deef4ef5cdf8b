"""How completions are sampled."""

from __future__ import annotations

import string
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from params.schema import Named, Section


class GenerationOptions(Section):
    """Keys that every such objective takes: prompts, rewards, and how completions are sampled.

    `training.global_batch_size` and `launch.micro_batch_size` count prompts, each with all its completions.
    """

    prompt: str = "{prompt}"
    """The prompt; a column's name in braces stands for its text, as in `Question: {question}`."""
    chat: bool = False
    """Let the tokenizer's chat template make a user's turn of the prompt."""
    reference_columns: list[str] = Field(default=["answer"])
    """Columns that rewards see, with `prompt` and `row_id`."""
    rewards: list[Named] = Field(default=[])
    """Functions of (completions, rows) that give each completion a number; trainer.rewards has some."""
    reward_weights: list[float] = Field(default=[])
    """What each reward is multiplied by before they are added up; by default 1."""
    num_generations: PositiveInt = 8
    """Completions that are sampled of each prompt."""
    max_new_tokens: PositiveInt = 64
    """Longest completion, in tokens; `tokenization.max_length` is that of prompts, which lose their beginning."""
    temperature: PositiveFloat = 1.0
    """Logits are divided by it; below 1 the likely tokens become likelier."""
    top_k: NonNegativeInt = 0
    """Sample from so many of the likeliest tokens only; 0 samples from all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sample from the likeliest tokens only that have this probability together."""
    generation_batch_size: PositiveInt | None = None
    """Most completions that a process samples at once, for want of memory; by default all that are due."""

    @field_validator("prompt")
    @classmethod
    def _names_columns(cls, value: str) -> str:
        if not _fields(value):
            raise ValueError("no column stands in the prompt, so all rows would have the same: write one as {column}")
        return value


def _fields(template: str) -> list[str]:
    """The columns that stand in a template."""
    try:
        found = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ValueError(f"braces do not match ({error}): write {{{{ for one that is meant") from error
    if odd := [field for field in found if not field.isidentifier()]:
        raise ValueError(f"{{{odd[0]}}} is no column's name: write {{column}}, and {{{{ for a brace that is meant")
    return found

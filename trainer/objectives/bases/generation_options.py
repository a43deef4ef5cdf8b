"""The recipe keys that all generative objectives share."""

from __future__ import annotations

import string
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from params.schema import CallOrName, Section


class GenerationOptions(Section):
    """Prompts, rewards, and how completions are sampled.

    `training.global_batch_size` and `launch.micro_batch_size` count prompts, each with all its completions.
    """

    prompt: str = "{prompt}"
    """The prompt, with column names in braces: `Question: {question}`."""
    chat: bool = False
    """Render the prompt as a user's message by the tokenizer's chat template."""
    reference_columns: list[str] = Field(default=["answer"])
    """Columns that rewards get, in addition to `prompt` and `row_id`."""
    rewards: list[CallOrName] = Field(default=[])
    """Functions of (completions, rows) that return one number per completion; trainer.rewards has some."""
    reward_weights: list[float] = Field(default=[])
    """The weight of each reward in their sum; by default 1."""
    num_generations: PositiveInt = 8
    """Completions to sample per prompt."""
    max_new_tokens: PositiveInt = 64
    """Maximum length of a completion in tokens. `tokenization.max_length` limits prompts, which lose their beginning."""
    temperature: PositiveFloat = 1.0
    """Logits are divided by it; below 1, likely tokens become likelier."""
    top_k: NonNegativeInt = 0
    """Sample from the k likeliest tokens only; 0 samples from all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sample from the smallest set of likeliest tokens with at least this total probability."""
    generation_batch_size: PositiveInt | None = None
    """Maximum number of completions that a process samples at once, to save memory; by default all of a round."""

    @field_validator("prompt")
    @classmethod
    def _names_columns(cls, value: str) -> str:
        if not template_columns(value):
            raise ValueError("it names no column, so all rows would have the same prompt: name one as {column}")
        return value


def template_columns(template: str) -> list[str]:
    """Return the columns that a prompt template names; ValueError if braces hold anything else or do not match."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"braces do not match ({error}): write {{{{ for a literal brace") from error
    if invalid := [name for name in names if not name.isidentifier()]:
        raise ValueError(f"{{{invalid[0]}}} is not a column name: write {{column}}, and {{{{ for a literal brace")
    return names


def text_around_column(template: str) -> tuple[str, str]:
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

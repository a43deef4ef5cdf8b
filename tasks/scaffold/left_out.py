"""What `evergreen new` asks about before a recipe leaves it out, or takes it for a class, because nobody has said what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from params import RecipeError
from tasks.scaffold.candidates import columns_in
from tasks.scaffold.look import RowSample, SampledColumn, columns_named
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.usual_names import CONTEXT
from trainer.objectives.advice.base import NewRecipeAdvice

KIND_WORDS: Final[Mapping[str, str]] = {
    "integer": "whole numbers",
    "number": "numbers",
    "boolean": "true or false",
    "json": "JSON as text",
}
"""What a column holds, in words."""
_SHORT: Final = 1 / 3
"""A text that is shorter than this, relative to the text that is read, is a title or the like."""


def confirm_what_is_left_out(
    advice: NewRecipeAdvice, chosen: Mapping[str, str], request: NewRecipeRequest, sample: RowSample
) -> None:
    """Ask about words among numbers that would be classes, about a second text, and about what a prompt is about.

    Columns that the user has named are no guesses.

    Args:
        advice: that of the objective.
        chosen: its columns, by flag.
        request: what the user has named.
        sample: the rows.

    Raises:
        RecipeError: nobody is there to ask, or does not want it; it names the flags that say so.
    """
    read = {name for own in chosen.values() for name in columns_in(own, sample)}
    unread = [c for c in sample.columns.values() if c.filled and c.name not in read and not c.is_incidental]
    guessed = {flag: own for flag, own in chosen.items() if flag not in request.columns}
    if (name := guessed.get("label")) in sample.columns:
        _confirm_classes(sample.columns[name], request)
    if (name := guessed.get("text")) in sample.columns and "text-pair" in advice.columns.keys() - chosen.keys():
        _confirm_one_text(sample.columns[name], unread, request)
    if "prompt" in guessed and "score" not in chosen:
        about = columns_named({c.name: c for c in unread}, CONTEXT)
        _confirm_prompt(guessed["prompt"], about, request, reads_several="prompt" in advice.templates)


def _confirm_classes(column: SampledColumn, request: NewRecipeRequest) -> None:
    if words := sorted({word.strip() for word in column.not_numbers}):
        name, one = column.name, words[0]
        what = f"`{name}` has numbers, and {', '.join(words[:3])}, which would be a class like each number"
        fix = (
            f"to predict numbers, and set the rows with {one} aside, add --score {name}; for classes add --label {name}"
        )
        request.confirm(f"Learn classes, one of them {one}?", RecipeError("--label", what, fix))


def _confirm_one_text(text: SampledColumn, unread: Sequence[SampledColumn], request: NewRecipeRequest) -> None:
    least = _SHORT * text.mean_characters
    others = [c.name for c in unread if c.has_spaces and not c.is_label and c.mean_characters > least]
    for other in others[:1]:
        what = f"`{other}` holds texts, too, and would not be read"
        alone = f"--text {text.name}"
        fix = f"add {alone} --text-pair {other} to read both together, or {alone} to read that one alone"
        request.confirm(f"Learn from `{text.name}` alone?", RecipeError("--text-pair", what, fix))


def _confirm_prompt(
    prompt: str, about: Sequence[SampledColumn], request: NewRecipeRequest, *, reads_several: bool
) -> None:
    for other in about[:1]:
        held, could_read = KIND_WORDS.get(other.kind, other.kind), other.can_be_text and not reads_several
        what = f"`{other.name}` ({held}) may belong to `{prompt}`, and would not be read"
        fix = "give a model that answers prompts" if could_read else f"write what `{other.name}` holds as text"
        fix += f"; or, to pass over it, add --prompt {prompt}"
        request.confirm(f"Learn without `{other.name}`?", RecipeError("--prompt", what, fix))

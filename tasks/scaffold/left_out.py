"""What `evergreen new` asks about before a recipe leaves it out, or takes it for a class, because nobody has said what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from params import RecipeError
from tasks.scaffold.look import RowSample, SampledColumn, columns_named
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.usual_names import CONTEXT

if TYPE_CHECKING:
    from tasks.scaffold.proposal import ObjectiveProposal

KIND_WORDS: Final[Mapping[str, str]] = {
    "integer": "whole numbers",
    "number": "numbers",
    "boolean": "true or false",
    "json": "JSON as text",
}
"""What a column holds, in words."""
_SHORT: Final = 1 / 3
"""A text that is shorter than this, relative to the text that is read, is a title or the like."""


def confirm_what_is_left_out(proposal: ObjectiveProposal, request: NewRecipeRequest, sample: RowSample) -> None:
    """Ask about words among numbers that would be classes, about a second text, and about what a prompt is about.

    Columns that the user has named are no guesses.

    Raises:
        RecipeError: nobody is there to ask, or does not want it; it names the flags that say so.
    """
    read = proposal.read_columns()
    unread = [c for c in sample.columns.values() if c.filled and c.name not in read and not c.is_incidental]
    _confirm_classes(proposal, request, sample)
    _confirm_one_text(proposal, request, sample, unread)
    _confirm_prompt(proposal, request, columns_named({c.name: c for c in unread}, CONTEXT))


def _confirm_classes(proposal: ObjectiveProposal, request: NewRecipeRequest, sample: RowSample) -> None:
    name = proposal.columns.get("label", "")
    words = sorted({word.strip() for word in sample.columns[name].not_numbers}) if name in sample.columns else []
    if words and "label" not in request.columns:
        what = f"`{name}` has numbers, and {', '.join(words[:3])}, which would be a class like each number"
        fix = f"to predict numbers, and set the rows with {words[0]} aside, add --score {name}; for classes add --label {name}"
        request.confirm(f"Learn classes, one of them {words[0]}?", RecipeError("--label", what, fix))


def _confirm_one_text(
    proposal: ObjectiveProposal, request: NewRecipeRequest, sample: RowSample, unread: Sequence[SampledColumn]
) -> None:
    name, reads_pair = proposal.columns.get("text", ""), "text-pair" in proposal.advice.columns
    if not reads_pair or "text-pair" in proposal.columns or "text" in request.columns or name not in sample.columns:
        return
    least = _SHORT * sample.columns[name].mean_characters
    others = [c.name for c in unread if c.has_spaces and not c.is_label and c.mean_characters > least]
    for other in others[:1]:
        what = f"`{other}` holds texts, too, and would not be read"
        fix = f"add --text {name} --text-pair {other} to read both together, or --text {name} to read that one alone"
        request.confirm(f"Learn from `{name}` alone?", RecipeError("--text-pair", what, fix))


def _confirm_prompt(proposal: ObjectiveProposal, request: NewRecipeRequest, unread: Sequence[SampledColumn]) -> None:
    prompt = proposal.columns.get("prompt")
    if prompt is None or "prompt" in request.columns or "score" in proposal.columns:
        return
    for other in unread[:1]:
        held = KIND_WORDS.get(other.kind, other.kind)
        what = f"`{other.name}` ({held}) may belong to `{prompt}`, and {proposal.objective} would not read it"
        can_read = "prompt" not in proposal.advice.templates and other.can_be_text
        fix = "give a model that answers prompts" if can_read else f"write what `{other.name}` holds as text"
        fix += f"; or, to pass over it, add --prompt {prompt}"
        request.confirm(f"Learn without `{other.name}`?", RecipeError("--prompt", what, fix))

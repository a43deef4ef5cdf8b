"""What `evergreen new` asks about before a recipe leaves it out, or takes it for a class, because nobody has said what it is."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from params import RecipeError
from params.foundation.errors import see_limits
from tasks.scaffold.look import RowSample, SampledColumn, columns_named, most, texts_in
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.usual_names import CONTEXT, MEANT_FOR_PROMPTS, USUAL_NAMES
from trainer.column_template import column_or_template, names_columns
from trainer.objectives.advice.base import NewRecipeAdvice

KIND_WORDS: Final[Mapping[str, str]] = {
    "integer": "whole numbers",
    "number": "numbers",
    "boolean": "true or false",
    "json": "JSON as text",
}
"""What a column holds, in words."""
_COMPARED: Final = 200
"""Rows that are looked at for what two columns say both."""
_SHORT: Final = 1 / 3
"""A text that is shorter than this, relative to the text that is read, is a title or the like."""


def confirm_what_is_left_out(
    advice: NewRecipeAdvice,
    chosen: Mapping[str, str],
    request: NewRecipeRequest,
    sample: RowSample,
    *,
    read: Collection[str],
) -> None:
    """Ask about words among numbers that would be classes, about a second text, and about what a prompt is about.

    Columns that the user has named are no guesses.

    Args:
        advice: that of the objective.
        chosen: its columns, by flag.
        request: what the user has named.
        sample: the rows.
        read: all columns that are read.

    Raises:
        RecipeError: nobody is there to ask, or does not want it; it names the flags that say so.
    """
    unread = [c for c in _unread(sample, read) if not c.is_incidental]
    guessed = {flag: own for flag, own in chosen.items() if flag not in request.columns}
    label, text = (sample.columns.get(guessed[flag]) if flag in guessed else None for flag in ("label", "text"))
    if label:
        _confirm_classes(label, request)
    if text and "text-pair" in advice.columns.keys() - chosen.keys():
        _confirm_one_text(text, unread, request)
    if advice.reads_prompts:
        _confirm_nothing_is_lost(advice, chosen, request, sample, read)
    elif "prompt" in guessed and "score" not in chosen:
        about = columns_named(_by_name(unread), CONTEXT)
        _confirm_prompt(guessed["prompt"], about, request, reads_several="prompt" in advice.templates)


def _unread(sample: RowSample, read: Collection[str]) -> list[SampledColumn]:
    return [c for c in sample.columns.values() if c.filled and c.name not in read]


def _by_name(columns: Sequence[SampledColumn]) -> dict[str, SampledColumn]:
    return {column.name: column for column in columns}


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


def _confirm_nothing_is_lost(
    advice: NewRecipeAdvice,
    chosen: Mapping[str, str],
    request: NewRecipeRequest,
    sample: RowSample,
    read: Collection[str],
) -> None:
    """Ask about what a model that answers would not read, unless the user has named what it reads."""
    flag = next(name for name in ("prompt", "messages", "completion", "chosen") if name in chosen)
    if flag in request.columns:
        return
    unread = _unread(sample, read)
    _confirm_without_pictures(unread, flag, chosen[flag], request)
    named, texts = _may_belong_to_prompt([c for c in unread if not _is_said_elsewhere(c.name, read, sample)])
    answers = columns_named(_by_name(texts), USUAL_NAMES["completion"]) if "completion" in chosen else []
    if "completion" not in request.columns:
        _confirm_answer(chosen.get("completion", ""), answers, request)
    about = [*named, *(c for c in texts if c not in answers)]
    _confirm_prompt(chosen[flag], about, request, reads_several=flag in advice.templates, flag=flag)


def _may_belong_to_prompt(columns: Sequence[SampledColumn]) -> tuple[list[SampledColumn], list[SampledColumn]]:
    """Return the columns that are called so, and others that hold texts; none that holds pictures."""
    others = [c for c in columns if not c.holds_pictures]
    named = columns_named(_by_name(others), MEANT_FOR_PROMPTS)
    return named, [c for c in others if c not in named and _says_something(c)]


def _confirm_without_pictures(unread: Sequence[SampledColumn], flag: str, read: str, request: NewRecipeRequest) -> None:
    for column in unread:
        if column.holds_pictures:
            what = f"`{column.name}` holds pictures or sound, which no objective reads"
            fix = "write what they show or say into a column of text"
            fix += f"; or, to learn from the texts alone, add --{flag} {_as_argument(read)}{see_limits('objective')}"
            request.confirm(f"Learn without `{column.name}`?", RecipeError(f"--{flag}", what, fix))


def _says_something(column: SampledColumn) -> bool:
    """Whether a column holds texts that are neither labels nor say which row it is."""
    return column.holds_texts and not (column.is_incidental or column.is_label or column.names_rows)


def _is_said_elsewhere(name: str, read: Collection[str], sample: RowSample) -> bool:
    """Whether what is read says what a column does, as messages that begin with the prompt beside them."""
    rows = [row for row in sample.rows["train"][:_COMPARED] if row.get(name)]
    pairs = [(texts_in(row[name]), "\n".join(texts_in([row.get(other) for other in read]))) for row in rows]
    return bool(pairs) and most(lambda pair: all(text.strip() in pair[1] for text in pair[0]) and pair[0], pairs)


def _confirm_answer(answer: str, others: Sequence[SampledColumn], request: NewRecipeRequest) -> None:
    for other in others:
        what = f"`{other.name}` may be the answer to learn, too, beside `{answer}`"
        fix = f"add --completion {shlex.quote(answer)} or --completion {shlex.quote(other.name)}"
        request.confirm(f"Learn `{answer}`, without `{other.name}`?", RecipeError("--completion", what, fix))


def _confirm_prompt(
    prompt: str,
    about: Sequence[SampledColumn],
    request: NewRecipeRequest,
    *,
    reads_several: bool,
    flag: str = "prompt",
) -> None:
    if not about:
        return
    said = " and ".join(f"`{other.name}` ({KIND_WORDS.get(other.kind, other.kind)})" for other in about)
    what = f"{said} may belong to `{' '.join(prompt.split())}`, and would not be read"
    names = [other.name for other in about]
    if unreadable := [other.name for other in about if not other.can_be_text]:
        fix = f"write what `{unreadable[0]}` holds as text"
    elif not reads_several:
        fix = "give a model that answers prompts" if flag == "prompt" else f"write it into `{prompt}`"
    else:
        fix = _read_too(prompt, names, flag)
    fix += f"; or, to pass over {'it' if len(names) == 1 else 'them'}, add --{flag} {_as_argument(prompt)}"
    request.confirm(f"Learn without `{'` and `'.join(names)}`?", RecipeError(f"--{flag}", what, fix))


def _read_too(prompt: str, names: Sequence[str], flag: str) -> str:
    """Return how a prompt is read behind other columns."""
    own = prompt if names_columns(prompt) else f"{{{prompt}}}"
    template = " ".join([*(f"{{{name}}}" for name in names), own])
    try:
        column_or_template(template)
    except ValueError:
        return "to read all, give the columns names that can stand in braces, of letters and digits"
    return f"to read {'both' if len(names) == 1 else 'all'}, add --{flag} {_as_argument(template)}"


def _as_argument(columns: str) -> str:
    """Return columns as an argument in one line: a template is read the same with a space between them."""
    return shlex.quote(" ".join(columns.split())) if names_columns(columns) else shlex.quote(columns)

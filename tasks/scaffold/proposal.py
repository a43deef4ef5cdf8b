"""Which objective and which columns fit the rows; where several do, it asks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from params import DataError, RecipeError
from params.loading import suggestion
from tasks.scaffold.look import RowSample, SampledColumn
from tasks.scaffold.request import NewRecipeRequest
from trainer import objectives
from trainer.objectives.bases.advice import ModelKind, NewRecipeAdvice, ObjectiveFit, SeenColumns

_USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text", "sentence", "content", "body", "message", "question", "review", "utterance", "document"),
    "label": ("label", "labels", "category", "class", "intent", "topic", "sentiment", "target", "tag", "type"),
    "spans": ("spans", "entities"),
    "prompt": ("prompt", "question", "instruction", "input", "query", "source", "article", "document", "problem"),
    "completion": (
        *("completion", "answer", "response", "output", "target", "summary", "translation", "solution", "reply"),
    ),
    "messages": ("messages", "conversation", "conversations", "chat"),
    "chosen": ("chosen", "preferred", "accepted", "better"),
    "rejected": ("rejected", "dispreferred", "worse"),
}
"""Usual names of the columns, most usual first."""
_MEANINGS: Final = {
    "completion": "answer",
    "messages": "conversation",
    "chosen": "better answer",
    "rejected": "worse answer",
}
"""What a flag stands for, where its name does not say it."""


@dataclass(frozen=True)
class ObjectiveProposal:
    """An objective with its columns."""

    objective: str
    columns: Mapping[str, str]
    """The columns by what they hold: `{"text": "question", "label": "intent"}`."""

    @property
    def advice(self) -> NewRecipeAdvice:
        """What the objective advises."""
        return proposable_objectives()[self.objective]

    @property
    def options(self) -> dict[str, str]:
        """The options of the objective that name the columns."""
        columns = self.advice.columns
        return {option: self.columns[flag] for flag, option in columns.items() if flag in self.columns}


def proposable_objectives() -> dict[str, NewRecipeAdvice]:
    """Return the objectives that can be proposed, in the order in which those that fit as well are."""
    found = {name: objectives.import_objective_class(name).advice for name in objectives.objective_names()}
    known = {name: advice for name, advice in found.items() if isinstance(advice, NewRecipeAdvice)}
    return dict(sorted(known.items(), key=lambda item: item[1].place))


def choose_objective_and_columns(request: NewRecipeRequest, sample: RowSample, kind: ModelKind) -> ObjectiveProposal:
    """Return the objective that the user names, or that fits rows and model, with its columns.

    Raises:
        RecipeError: nothing fits, or several do and nobody is there to ask.
        DataError: the rows have another form than any objective reads.
    """
    given, known = request.columns, proposable_objectives()
    for flag, column in given.items():
        if column not in sample.columns:
            fix = suggestion(column, list(sample.columns), "columns")
            raise RecipeError(f"--{flag}", f"the rows have no column `{column}`", fix)
    objective = request.objective
    if objective:
        _check_named(objective, kind)
    else:
        possible = [name for name in best_fitting_objectives(sample, given) if kind in known[name].models]
        if not possible:
            raise _nothing_fits(sample, kind, given)
        options = {name: known[name].meaning for name in possible}
        objective = request.choose("--objective", "What the model should learn", options)
    columns: dict[str, str] = {}
    for flag in known[objective].asked(_seen(sample, given)):
        chosen = {**columns, **given}
        columns[flag] = chosen[flag] if flag in chosen else _choose_column(flag, sample, chosen, request, objective)
    return ObjectiveProposal(objective, columns)


def _check_named(objective: str, kind: ModelKind) -> None:
    known = proposable_objectives()
    if objective not in objectives.objective_names():
        fix = suggestion(objective, sorted(known), "objectives")
        raise RecipeError("--objective", f"there is no objective `{objective}`", fix)
    if objective not in known:
        fix = "write the recipe by hand, or give the objective an `advice`: docs/objectives.md"
        raise RecipeError("--objective", f"{objective} {objectives.import_objective_class(objective).advice}", fix)
    if kind not in known[objective].models:
        fix = f"use {', '.join(o for o, advice in known.items() if kind in advice.models)}, or another model"
        raise RecipeError("--objective", f"{objective} does not work with this {kind} model", fix)


def best_fitting_objectives(sample: RowSample, given: Mapping[str, str]) -> list[str]:
    """Return the objectives that fit the rows best."""
    seen = _seen(sample, given)
    fits = {name: advice.fit(seen) for name, advice in proposable_objectives().items()}
    best = max(fits.values())
    return [name for name, fit in fits.items() if fit == best != ObjectiveFit.NOT]


def _seen(sample: RowSample, given: Mapping[str, str]) -> SeenColumns:
    prompts = _by_name(sample, "prompt")
    answers = [c for c in _by_name(sample, "completion") if c not in prompts[:1] and not c.is_label]
    found = {
        "text": len(_candidates("text", sample, given)) == 1 and not any(_form_hints(sample)),
        "label": _candidates("label", sample, given),
        "completion": answers,  # free text
        **{flag: _candidates(flag, sample, given) for flag in ("spans", "messages")},
        **{flag: _by_name(sample, flag) for flag in ("prompt", "chosen", "rejected")},
    }
    return SeenColumns(frozenset(given), frozenset(flag for flag, is_there in found.items() if is_there))


def _choose_column(
    flag: str, sample: RowSample, chosen: Mapping[str, str], request: NewRecipeRequest, objective: str
) -> str:
    """Return the column for a flag: the only one that fits, the one with the usual name, or the one that the user chooses."""
    candidates = [c for c in _candidates(flag, sample, chosen) if c.name not in chosen.values()]
    usual = [c for c in _by_name(sample, flag) if c in candidates]
    if len(usual) == 1 or (usual and flag != "label"):
        candidates = usual = usual[:1]
    if not candidates:
        columns = ", ".join(f"{c.name} ({c.kind})" for c in sample.columns.values())
        what = f"{objective} needs --{flag}; none of these columns fits: {columns}"
        raise RecipeError(f"--{flag}", what, f"add --{flag} COLUMN")
    options = {c.name: _facts(c) for c in [*usual, *candidates]}
    return request.choose(f"--{flag}", f"The column with the {_MEANINGS.get(flag, flag)}", options)


def _facts(column: SampledColumn) -> str:
    if column.is_label:
        return f"{column.distinct} values"
    return f"{column.mean_characters:.0f} characters on average" if column.kind == "text" else column.kind


def _by_name(sample: RowSample, flag: str) -> list[SampledColumn]:
    """Return the columns with a usual name for a flag, most usual first."""
    columns = {c.name.lower(): c for c in sample.columns.values()}
    return [columns[name] for name in _USUAL[flag] if name in columns]


def _candidates(flag: str, sample: RowSample, chosen: Mapping[str, str]) -> list[SampledColumn]:
    """Return the columns that can be what a flag names."""
    columns, taken = list(sample.columns.values()), set(chosen.values())
    if flag in ("spans", "messages"):
        return [c for c in columns if c.kind == flag]
    if flag == "text":  # neither labels nor names, longest texts first
        texts = [c for c in columns if c.kind == "text" and c.name not in taken]
        found = [c for c in texts if not c.is_id and not (c.is_label and not c.has_spaces)]
        found = found or [c for c in texts if not c.is_label] or texts
        return sorted([c for c in found if c.has_spaces] or found, key=lambda c: -c.mean_characters)
    if flag == "label":
        if "text" not in chosen and len(texts := _candidates("text", sample, chosen)) == 1:
            taken.add(texts[0].name)  # the only one that can be the text
        return [c for c in columns if c.name not in taken and c.is_label and not c.is_id]
    by_name = [c for c in _by_name(sample, flag) if c.can_be_text]
    return by_name or [c for c in columns if c.kind == "text" and not c.is_id]


_OWN = "; or write an objective (docs/objectives.md), and name it with --objective"


def _nothing_fits(sample: RowSample, kind: ModelKind, given: Mapping[str, str]) -> DataError | RecipeError:
    """Return the error that says why no objective reads these rows."""
    for hint in _form_hints(sample):
        return hint
    possible = best_fitting_objectives(sample, given)
    columns = ", ".join(f"{c.name} ({c.kind})" for c in sample.columns.values())
    if possible:
        what = f"these rows are for {' or '.join(possible)}, which does not work with this {kind} model"
        return RecipeError("--model", what, "give another model, or name an objective with --objective")
    what = f"no objective fits these columns: {columns}"
    return RecipeError("--objective", what, f"name one of {', '.join(proposable_objectives())}, and its columns")


def _form_hints(sample: RowSample) -> Iterator[DataError]:
    """Yield errors for forms of rows that have to be converted."""
    alone = next((name for name, advice in proposable_objectives().items() if advice.reads_running_text), None)
    or_alone = f"; to learn from the texts alone, add --objective {alone}" if alone else ""
    has_texts = any(c.kind == "text" for c in sample.columns.values())
    for column in sample.columns.values():
        first = next(iter(column.filled), None)
        if column.kind == "record" and isinstance(first, dict) and not has_texts:
            what = f"column `{column.name}` holds records with {', '.join(map(repr, list(first)[:5]))}"
            place = f".[{json.dumps(column.name)}]"
            fix = f"make a column of each: jq -c {shlex.quote(f'. + {place} | del({place})')} FILE > rows.jsonl"
            yield DataError(column.name, what, fix)
        if column.kind == "list" and isinstance(first, list) and first and isinstance(first[0], dict):
            if len(column.values) == 1:
                fix = f"write one object per line: jq -c {shlex.quote(f'.[{json.dumps(column.name)}][]')} FILE > rows.jsonl"
                yield DataError(column.name, "holds all rows as one list", fix)
            elif {"from", "value"} <= set(first[0]):
                fix = "rename from to role and value to content, and write user and assistant for human and gpt"
                yield DataError(column.name, "holds conversations as {from, value}, not {role, content}", fix)
        if column.name.lower() not in _USUAL["label"]:
            continue
        if column.kind == "number" and all(float(value).is_integer() for value in column.filled):
            fix = f"write 1 for 1.0{or_alone}"
            yield DataError(column.name, "holds whole numbers with decimals, which are no names of classes", fix)
        elif column.kind == "number":
            fix = f"write a name for each range, for example low, medium and high{_OWN}"
            what = "holds numbers with decimals, which no objective here predicts"
            yield DataError(column.name, what, fix)
        elif column.kind == "list":
            fix = f"write one label per text{or_alone}{_OWN}"
            yield DataError(column.name, "holds lists, and no objective here takes several labels per text", fix)

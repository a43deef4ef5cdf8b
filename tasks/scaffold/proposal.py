"""Which objective and which columns fit the rows; where several do, it asks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from params import RecipeError
from params.foundation.errors import see_limits
from params.problems import suggestion
from params.schema import ObjectiveChoice
from tasks.scaffold.candidates import (
    NESTED,
    find_candidates,
    find_lead,
    find_usual_columns,
    list_row_forms,
    proposable_objectives,
)
from tasks.scaffold.forms import find_row_forms, rating_column
from tasks.scaffold.left_out import KIND_WORDS, confirm_what_is_left_out
from tasks.scaffold.look import Kind, RowSample, SampledColumn, columns_named, most
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.usual_names import CONTEXT, RELEVANCE, USUAL_NAMES
from trainer import objectives
from trainer.column_template import column_or_template, names_columns
from trainer.objectives.advice.base import AdvisedValue, ModelKind, NewRecipeAdvice, ObjectiveFit, SeenColumns
from trainer.objectives.advice.pairs import find_usual_pair
from trainer.objectives.bases.labels.sets import says_yes
from trainer.objectives.bases.preferences.pairs import begin_with_prompt
from trainer.objectives.bases.rows import ColumnKind

_DOCUMENTS: Final = ("document", "passage", "positive")
"""Usual names of columns with what a query finds. What is called `positive` is close to its anchor, and no answer."""
_FITTING: Final[Mapping[ColumnKind, tuple[str, set[Kind]]]] = {
    **dict.fromkeys(("string", "optional"), ("text", set[Kind]())),
    "label": ("labels", {"text", "integer", "boolean"}),
    "labels": ("lists of labels", {"list", "record"}),
    "number": ("numbers", {"integer", "number"}),
    "numbers": ("lists of numbers", {"list"}),
    "records": ("lists of records", {"messages", "spans", "list"}),
    "record": ("records", {"record", "spans", "list"}),
}
"""What the columns of an objective may hold, in words and as a sample shows it."""
_MEANINGS: Final = {
    "text-pair": "second text",
    "score": "number",
    "completion": "answer",
    "messages": "conversation",
    "chosen": "better answer",
    "rejected": "worse answer",
    "liked": "feedback",
}
"""What a flag stands for, where its name does not say it."""


@dataclass(frozen=True)
class ObjectiveProposal:
    """An objective with its columns."""

    objective: str
    columns: Mapping[str, str]
    """The columns by what they hold, or templates of them: `{"text": "question", "label": "intent"}`."""
    found: Mapping[str, AdvisedValue] = field(default_factory=dict)
    """Options that follow from what the rows hold."""

    @property
    def advice(self) -> NewRecipeAdvice:
        return proposable_objectives()[self.objective]

    @property
    def options(self) -> dict[str, Any]:
        """The options of the objective that name the columns, or follow from what the rows hold."""
        columns, found = self.advice.columns, {name: one.value for name, one in self.found.items()}
        return {option: self.columns[flag] for flag, option in columns.items() if flag in self.columns} | found

    def read_columns(self, *flags: str) -> list[str]:
        """Return the columns of some flags, or of all, each once."""
        given = {flag: own for flag, own in self.columns.items() if not flags or flag in flags}
        templates = self.advice.templates
        names = ([*column_or_template(own).columns] if flag in templates else [own] for flag, own in given.items())
        options = [] if flags else [str(own.value) for name, own in self.found.items() if name.endswith("_column")]
        return list(dict.fromkeys([*itertools.chain.from_iterable(names), *options]))


def choose_objective_and_columns(request: NewRecipeRequest, sample: RowSample, kind: ModelKind) -> ObjectiveProposal:
    """Return the objective that the user names, or that fits rows and model, with its columns.

    Raises:
        RecipeError: nothing fits, or several do and nobody is there to ask.
        DataError: the rows have another form than any objective reads.
    """
    given = request.columns
    for flag, column in given.items():
        _check_column(flag, column, sample)
    if request.objective:
        _check_named(request.objective, kind)
    objective = request.objective or _choose_objective(request, sample, kind)
    advice, columns = proposable_objectives()[objective], dict[str, str]()
    if "text-pair" in advice.columns and given.keys().isdisjoint({"text", "text-pair"}):
        given = {**_pair(sample), **given}
    given = {**_scored_pair(advice, given, sample), **given}
    for flag in advice.asked(_seen(sample, given)):
        if form := next((form for form in list_row_forms(sample) if flag == form.decides), None):
            raise form.error(sample.patterns)
        chosen = {**columns, **given}
        if flag not in chosen and not find_candidates(flag, sample, chosen):
            for form in list_row_forms(sample):
                if form.column.lower() in USUAL_NAMES[flag]:
                    raise form.error(sample.patterns)
        columns[flag] = chosen[flag] if flag in chosen else _choose_column(flag, sample, chosen, request, objective)
    for flag in advice.templates.intersection(columns).difference(given, {"labels", "choices", "rejected"}):
        columns[flag] = _with_context(columns, flag, sample, has_lead=advice.reads_prompts)
    for flag, column in columns.items():
        if names_columns(column) and (flag in advice.templates) == (column in sample.columns):
            is_name = flag in advice.templates
            what = f"{column!r} is the name of a column" if is_name else f"{objective} reads one column there"
            fix = "name it without braces, which here stand around columns" if is_name else "name one column"
            raise RecipeError(f"--{flag}", what, fix)
    found = advice.found_options(columns, sample.rows["train"])
    if any(own in sample.columns and sample.columns[own].kind == "messages" for own in columns.values()):
        filled = [c.name for c in sample.columns.values() if c.filled and c.name not in columns.values()]
        found |= advice.found_beside_messages(filled) if advice.reads_prompts else {}
    proposal = ObjectiveProposal(objective, columns, found)
    _check_kinds(proposal, sample)
    confirm_what_is_left_out(advice, columns, request, sample, read=proposal.read_columns())
    return proposal


def _choose_objective(request: NewRecipeRequest, sample: RowSample, kind: ModelKind) -> str:
    for form in list_row_forms(sample):
        if not (form.is_proposed or request.columns):
            raise form.error(sample.patterns)
    known = proposable_objectives()
    possible = [name for name in best_fitting_objectives(sample, request.columns) if kind in known[name].models]
    if not possible:
        return _choose_text_alone(request, sample, kind)
    return request.choose(
        "--objective", "What the model should learn", {name: known[name].meaning for name in possible}
    )


def _check_column(flag: str, column: str, sample: RowSample) -> None:
    try:
        names = list(column_or_template(column).columns) if column not in sample.columns else []
    except ValueError as error:
        raise RecipeError(
            f"--{flag}", str(error), "write a column, or columns in braces: {instruction} {input}"
        ) from None
    for name in names:
        if name not in sample.columns:
            fix = suggestion(name, list(sample.columns), "columns")
            raise RecipeError(f"--{flag}", f"the rows have no column `{name}`", fix)


def _with_context(columns: Mapping[str, str], flag: str, sample: RowSample, *, has_lead: bool) -> str:
    """Return the column of a prompt, or a template of it, of what leads to it, and of the column with what it is about, if there is one."""
    usual = columns_named(sample.columns, CONTEXT)
    found = [c for c in usual if c.can_be_text and not (c.is_numeric and c.is_id)]
    is_text = sample.columns[columns[flag]].can_be_text
    lead = find_lead(sample, columns[flag], columns.values()) if has_lead and is_text else []
    names = [*lead, columns[flag], *(c.name for c in found if c.name not in {*columns.values(), *lead})]
    template = "\n\n".join(f"{{{name}}}" for name in names)
    try:
        column_or_template(template)
    except ValueError:  # a name that cannot stand in braces
        return columns[flag]
    return template if len(names) > 1 else columns[flag]


def _check_kinds(proposal: ObjectiveProposal, sample: RowSample) -> None:
    """Refuse a column that holds something else than the objective reads."""
    choice = ObjectiveChoice.model_validate({"name": proposal.objective, **proposal.options})
    kinds = {} if objectives.find_option_problems(choice) else objectives.build_objective(choice).columns()
    for flag in proposal.columns:
        for column in (sample.columns[name] for name in proposal.read_columns(flag)):
            kind = kinds.get(column.name)
            if (
                flag == "labels" and kind == "label" and most(_says_yes_or_no, column.filled)
            ):  # or the share that says yes
                continue
            is_text, reads_messages = kind in ("string", "optional"), flag in proposal.advice.conversations
            role = "text" if is_text else kind or ""
            forms = [f for f in find_row_forms(sample.columns, {role: column.name}) if f.column == column.name]
            for form in forms:
                if form.role and form.role == role:
                    raise form.error(sample.patterns)
            if kind is None or (is_text and (column.can_be_text or (reads_messages and column.kind == "messages"))):
                continue
            if column.kind in _FITTING[kind][1] | {"empty"} or (kind == "number" and column.says_numbers):
                continue
            if flag == "label" and column.has_label_sets:
                what = f"column `{column.name}` holds several labels of each row"
                raise RecipeError("--label", what, f"name it with --labels {column.name}")
            what = f"column `{column.name}` holds {KIND_WORDS.get(column.kind, column.kind)}"
            read = f"{proposal.objective} reads {_FITTING[kind][0]} there"
            fix = forms[0].error(sample.patterns).fix if forms else f"name another column with --{flag}"
            raise RecipeError(f"--{flag}", f"{what}, and {read}", fix)


def _says_yes_or_no(value: Any) -> bool:
    with contextlib.suppress(ValueError):
        says_yes(value)
        return True
    return False


def _check_named(objective: str, kind: ModelKind) -> None:
    known = proposable_objectives()
    if objective not in known:
        try:
            cls = objectives.import_objective_class(objective)
        except RecipeError as error:
            raise RecipeError("--objective", error.what, error.fix) from error
        fix = "write the recipe by hand, or give the objective an `advice`: docs/objectives.md"
        raise RecipeError("--objective", f"{objective} {cls.advice}", fix)
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
    prompts, texts = find_usual_columns(sample, "prompt"), find_candidates("text", sample, given)
    answers = [c for c in find_usual_columns(sample, "completion") if c not in prompts[:1]]
    answers = [c for c in answers if c.name.lower() not in _DOCUMENTS]
    answers = [c for c in answers if not c.is_label or c.is_numeric or c.name.lower() not in USUAL_NAMES["label"]]
    pair = {} if "text" in given else _pair(sample)
    grades = [c for c in columns_named(sample.columns, RELEVANCE) if c.says_numbers or c.kind == "boolean"]
    scores = [c for c in find_usual_columns(sample, "score") if c.says_fractions or (c in grades and c.says_numbers)]
    sets = find_candidates("labels", sample, given) if texts else []
    marked = [*column_or_template(sets[0].name).columns] if sets and names_columns(sets[0].name) else []
    documents = [c for c in columns_named(sample.columns, _DOCUMENTS) if c.kind == "text" and not c.is_label]
    has_documents = any(c not in prompts[:1] for c in documents) and bool(prompts)
    graded = [c for c in columns_named(sample.columns, ("grade",)) if c.says_numbers and has_documents]
    others = [c.name for c in (*scores, *graded) if not c.is_called_label] + (marked if len(marked) > 2 else [])
    asked = prompts if answers or has_documents else []
    labels = [c for c in find_candidates("label", sample, {**pair, **given}) if c not in asked]
    found = {
        "text": len(texts) == 1 and not list_row_forms(sample),
        "label": [c for c in labels if c.name not in others],
        "labels": sets,
        "completion": answers,
        "text-pair": pair,
        "score": texts and scores,
        **{flag: find_candidates(flag, sample, given) for flag in (*NESTED, "liked")},
        **{flag: find_usual_columns(sample, flag) for flag in ("prompt", "chosen", "rejected", "question", "context")},
    }
    both = [
        given.get(flag) or next((c.name for c in find_usual_columns(sample, flag)), "")
        for flag in ("chosen", "rejected")
    ]
    pairs = [[row.get(name) for name in both] for row in sample.rows["train"][:1000]]
    is_chat = any(c.kind == "messages" for c in prompts[:1])
    own = given.get("text") or next((c.name for c in texts), None)
    return SeenColumns(
        frozenset(given),
        frozenset(flag for flag, is_there in found.items() if is_there),
        is_text_alone=all(c.is_incidental for c in sample.columns.values() if c.name != own),
        answers_have_prompt=not is_chat and most(lambda pair: begin_with_prompt(*pair), pairs),
        rates_answers=rating_column(sample.columns) is not None,
        pairs_documents=has_documents and not found["score"],
        ranks_documents=bool(grades) and any(c.distinct < len(c.filled) for c in prompts[:1]),
    )


def _pair(sample: RowSample) -> dict[str, str]:
    return find_usual_pair(c.name for c in sample.columns.values() if c.kind == "text")


def _scored_pair(advice: NewRecipeAdvice, given: Mapping[str, str], sample: RowSample) -> dict[str, str]:
    """Return the usual pair of texts as prompt and completion, where somebody names what a number or a label says of both."""
    pair, flags = _pair(sample), ("prompt", "completion")
    is_named = not given.keys().isdisjoint({"score", "label"}) and given.keys().isdisjoint({"text", *flags})
    is_usual = all(find_usual_columns(sample, flag) for flag in flags)
    reads_pair = advice.columns.keys() >= set(flags) and "text-pair" not in advice.columns
    return dict(zip(flags, pair.values(), strict=True)) if pair and is_named and reads_pair and not is_usual else {}


def _choose_column(
    flag: str, sample: RowSample, chosen: Mapping[str, str], request: NewRecipeRequest, objective: str
) -> str:
    """Return the column for a flag: the only one that fits, the one with the usual name, or the one that the user chooses."""
    candidates = [c for c in find_candidates(flag, sample, chosen) if c.name not in chosen.values()]
    usual = [c for c in find_usual_columns(sample, flag) if c in candidates]
    if len(usual) == 1 or (usual and flag != "label"):
        candidates = usual = usual[:1]
    if not candidates:
        columns = ", ".join(f"{c.name} ({c.kind})" for c in sample.columns.values())
        what = f"{objective} needs --{flag}; none of these columns fits: {columns}"
        raise RecipeError(f"--{flag}", what, f"add --{flag} COLUMN")
    options = {c.name: _facts(c) for c in [*usual, *candidates]}
    reads_pair = flag == "text" and "text-pair" in proposable_objectives()[objective].columns
    more = "; of two that belong together, name the other one with --text-pair" if reads_pair else ""
    return request.choose(f"--{flag}", f"The column with the {_MEANINGS.get(flag, flag)}", options, more)


def _facts(column: SampledColumn) -> str:
    if column.is_label:
        return f"{column.distinct} values"
    return f"{column.mean_characters:.0f} characters on average" if column.kind == "text" else column.kind


_OWN: Final = "; or write an objective (docs/objectives.md), and name it with --objective"


def _instead(sample: RowSample, kind: ModelKind) -> str:
    """Return the flags with which a recipe is written all the same."""
    text = {"text"} if len(find_candidates("text", sample, {})) == 1 else set()
    seen = _seen(sample, {})
    seen = replace(seen, found=seen.found | text, rates_answers=False, is_text_alone=True)
    known = {name: advice for name, advice in proposable_objectives().items() if kind in advice.models}
    fits = {name: advice.fit(seen) for name, advice in known.items()}
    flags = [f"--objective {name}" for name, fit in fits.items() if fit == max(fits.values()) != ObjectiveFit.NOT]
    return f"; or, to pass over this, add {' or '.join(flags)}" if flags else ""


def _choose_text_alone(request: NewRecipeRequest, sample: RowSample, kind: ModelKind) -> str:
    """Return the objective that learns from the texts alone, if somebody wants that; else say why nothing fits."""
    given, known = request.columns, proposable_objectives()
    seen = _seen(sample, given)
    possible, texts = best_fitting_objectives(sample, given), find_candidates("text", sample, given)
    columns = [f"{c.name} ({c.kind})" for c in sample.columns.values()]
    alone = next((name for name, advice in known.items() if advice.reads_running_text and kind in advice.models), None)
    for form in list_row_forms(sample):
        raise form.error(sample.patterns, _instead(sample, kind) + (_OWN if form.convert is None else ""))
    if possible:
        what = f"these rows are for {' or '.join(possible)}, which does not work with this {kind} model"
        raise RecipeError("--model", what, "give another model, or name an objective with --objective")
    if alone is None or len(texts) != 1 or seen.is_text_alone:
        what = f"no objective fits these columns: {', '.join(columns)}"
        fix = f"name one of {', '.join(known)}, and its columns{see_limits('objective')}"
        raise RecipeError("--objective", what, fix)
    others = [c for c in sample.columns.values() if c is not texts[0] and not c.is_incidental]
    what = f"no objective reads {', '.join(f'`{c.name}` ({KIND_WORDS.get(c.kind, c.kind)})' for c in others)} of these rows"
    fix = f"to learn from `{texts[0].name}` alone, add --objective {alone}; or name the columns of another objective"
    fix += next((f", such as --score {c.name}" for c in others if c.says_numbers), "")
    request.confirm(
        f"Learn {known[alone].meaning} from `{texts[0].name}` alone?", RecipeError("--objective", what, fix)
    )
    return alone

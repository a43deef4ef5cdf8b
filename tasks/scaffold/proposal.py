"""Which objective and which columns fit the rows; where several do, it asks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

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
_COMPARED_ROWS: Final = 1000
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
    for flag, column in request.columns.items():
        _check_column(flag, column, sample)
    if request.objective:
        _check_named(request.objective, kind)
    objective = request.objective or _choose_objective(request, sample, kind)
    columns = _choose_columns(request, sample, objective)
    _check_templates(objective, columns, sample)
    advice = proposable_objectives()[objective]
    proposal = ObjectiveProposal(objective, columns, _found_options(advice, columns, sample))
    _check_kinds(proposal, sample)
    confirm_what_is_left_out(advice, columns, request, sample, read=proposal.read_columns())
    return proposal


def _choose_columns(request: NewRecipeRequest, sample: RowSample, objective: str) -> dict[str, str]:
    """Return the columns for all flags of an objective that are needed."""
    advice, given, columns = proposable_objectives()[objective], request.columns, dict[str, str]()
    if "text-pair" in advice.columns and given.keys().isdisjoint({"text", "text-pair"}):
        given = {**_pair(sample), **given}
    given = {**_scored_pair(advice, given, sample), **given}
    for flag in advice.asked(_seen(sample, given)):
        chosen = {**columns, **given}
        _refuse_forms_in_place_of(flag, sample, chosen)
        columns[flag] = chosen[flag] if flag in chosen else _choose_column(flag, sample, chosen, request, objective)
    for flag in advice.templates.intersection(columns).difference(given, {"labels", "choices", "rejected"}):
        columns[flag] = _with_context(columns, flag, sample, has_lead=advice.reads_prompts)
    return columns


def _refuse_forms_in_place_of(flag: str, sample: RowSample, chosen: Mapping[str, str]) -> None:
    """Refuse rows of another form that say what a flag names; or in which only the column with its usual name could."""
    for form in list_row_forms(sample):
        if form.decides == flag:
            raise form.error(sample.patterns)
    if flag in chosen or find_candidates(flag, sample, chosen):
        return
    for form in list_row_forms(sample):
        if form.column.lower() in USUAL_NAMES[flag]:
            raise form.error(sample.patterns)


def _check_templates(objective: str, columns: Mapping[str, str], sample: RowSample) -> None:
    """Refuse the name of a column where a template is read, and the other way round."""
    templates = proposable_objectives()[objective].templates
    for flag, column in columns.items():
        if names_columns(column) and (flag in templates) == (column in sample.columns):
            is_name = flag in templates
            what = f"{column!r} is the name of a column" if is_name else f"{objective} reads one column there"
            fix = "name it without braces, which here stand around columns" if is_name else "name one column"
            raise RecipeError(f"--{flag}", what, fix)


def _found_options(advice: NewRecipeAdvice, columns: Mapping[str, str], sample: RowSample) -> dict[str, AdvisedValue]:
    """Return options that follow from what the rows hold, and from columns beside messages."""
    found = dict(advice.found_options(columns, sample.rows["train"]))
    read = [sample.columns[own] for own in columns.values() if own in sample.columns]
    if advice.reads_prompts and any(column.kind == "messages" for column in read):
        beside = [c.name for c in sample.columns.values() if c.filled and c.name not in columns.values()]
        found |= advice.found_beside_messages(beside)
    return found


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
        for name in proposal.read_columns(flag):
            _check_kind(_ReadColumn(proposal, flag, sample.columns[name], kinds.get(name)), sample)


class _ReadColumn(NamedTuple):
    """A column that a flag names, and what the objective reads there."""

    proposal: ObjectiveProposal
    flag: str
    column: SampledColumn
    read: ColumnKind | None
    """None if the objective cannot be built yet."""

    @property
    def role(self) -> str:
        """What the column is to a form of rows."""
        return "text" if self.read in ("string", "optional") else self.read or ""

    @property
    def says_yes_or_no(self) -> bool:
        """Whether it is one of several columns that each say yes or no of a label, or the share that says yes."""
        return self.flag == "labels" and self.read == "label" and most(_says_yes_or_no, self.column.filled)

    @property
    def fits(self) -> bool:
        """Whether the objective can read what the column holds."""
        if self.read is None:
            return True
        reads_messages = self.flag in self.proposal.advice.conversations
        if self.role == "text" and (self.column.can_be_text or (reads_messages and self.column.kind == "messages")):
            return True
        if self.read == "number" and self.column.says_numbers:
            return True
        return self.column.kind in _FITTING[self.read][1] | {"empty"}


def _check_kind(own: _ReadColumn, sample: RowSample) -> None:
    if own.says_yes_or_no:
        return
    flag, column = own.flag, own.column
    forms = [f for f in find_row_forms(sample.columns, {own.role: column.name}) if f.column == column.name]
    for form in forms:
        if form.role and form.role == own.role:
            raise form.error(sample.patterns)
    if own.read is None or own.fits:
        return
    if flag == "label" and column.has_label_sets:
        what = f"column `{column.name}` holds several labels of each row"
        raise RecipeError("--label", what, f"name it with --labels {column.name}")
    what = f"column `{column.name}` holds {KIND_WORDS.get(column.kind, column.kind)}"
    read = f"{own.proposal.objective} reads {_FITTING[own.read][0]} there"
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
    seen = _seen(sample, given)
    fits = {name: advice.fit(seen) for name, advice in proposable_objectives().items()}
    best = max(fits.values())
    return [name for name, fit in fits.items() if fit == best != ObjectiveFit.NOT]


def _seen(sample: RowSample, given: Mapping[str, str]) -> SeenColumns:
    look = _Look(sample, given)
    found = look.found()
    return SeenColumns(
        frozenset(given),
        frozenset(flag for flag, is_there in found.items() if is_there),
        is_text_alone=look.is_text_alone,
        answers_have_prompt=look.answers_have_prompt,
        rates_answers=rating_column(sample.columns) is not None,
        pairs_documents=look.has_documents and not found["score"],
        ranks_documents=look.ranks_documents,
    )


@dataclass(frozen=True)
class _Look:
    """What the columns of a sample can be, beside those that are given, one question each."""

    sample: RowSample
    given: Mapping[str, str]

    def found(self) -> dict[str, object]:
        """Return for each flag whether something is there for it."""
        usual = ("prompt", "chosen", "rejected", "question", "context")
        return {
            "text": len(self.texts) == 1 and not list_row_forms(self.sample),
            "label": self.labels,
            "labels": self.label_sets,
            "completion": self.answers,
            "text-pair": self.pair,
            "score": self.texts and self.scores,
            **{flag: find_candidates(flag, self.sample, self.given) for flag in (*NESTED, "liked")},
            **{flag: find_usual_columns(self.sample, flag) for flag in usual},
        }

    @cached_property
    def prompts(self) -> list[SampledColumn]:
        return find_usual_columns(self.sample, "prompt")

    @cached_property
    def texts(self) -> list[SampledColumn]:
        return find_candidates("text", self.sample, self.given)

    @cached_property
    def pair(self) -> dict[str, str]:
        return {} if "text" in self.given else _pair(self.sample)

    @cached_property
    def answers(self) -> list[SampledColumn]:
        usual = find_usual_columns(self.sample, "completion")
        return [c for c in usual if c not in self.prompts[:1] and _can_be_answer(c)]

    @cached_property
    def grades(self) -> list[SampledColumn]:
        """Columns that say how relevant a document is for its query."""
        usual = columns_named(self.sample.columns, RELEVANCE)
        return [c for c in usual if c.says_numbers or c.kind == "boolean"]

    @cached_property
    def scores(self) -> list[SampledColumn]:
        usual = find_usual_columns(self.sample, "score")
        return [c for c in usual if c.says_fractions or (c.says_numbers and c in self.grades)]

    @cached_property
    def has_documents(self) -> bool:
        """Whether there are documents beside a query."""
        named = columns_named(self.sample.columns, _DOCUMENTS)
        documents = [c for c in named if c.kind == "text" and not c.is_label]
        return bool(self.prompts) and any(c not in self.prompts[:1] for c in documents)

    @cached_property
    def label_sets(self) -> list[SampledColumn]:
        return find_candidates("labels", self.sample, self.given) if self.texts else []

    @cached_property
    def labels(self) -> list[SampledColumn]:
        """Columns of one label; none that is a prompt, a score or one of several columns that say yes or no."""
        asked = self.prompts if self.answers or self.has_documents else []
        found = find_candidates("label", self.sample, {**self.pair, **self.given})
        return [c for c in found if c not in asked and c.name not in self._no_labels]

    @cached_property
    def _no_labels(self) -> set[str]:
        """Columns that look like labels, and are numbers to learn, or say yes or no of one of several labels."""
        graded = columns_named(self.sample.columns, ("grade",)) if self.has_documents else []
        numbers = [*self.scores, *(c for c in graded if c.says_numbers)]
        marked = list[str]()
        if self.label_sets and names_columns(self.label_sets[0].name):
            marked = [*column_or_template(self.label_sets[0].name).columns]
        return {c.name for c in numbers if not c.is_called_label} | {*(marked if len(marked) > 2 else [])}

    @property
    def is_text_alone(self) -> bool:
        """Whether all columns beside the text say nothing about a row."""
        own = self.given.get("text") or next((c.name for c in self.texts), None)
        return all(c.is_incidental for c in self.sample.columns.values() if c.name != own)

    @property
    def answers_have_prompt(self) -> bool:
        """Whether the better and the worse answer begin with the prompt."""
        if any(c.kind == "messages" for c in self.prompts[:1]):
            return False
        chosen, rejected = self._pair_of_answers("chosen"), self._pair_of_answers("rejected")
        rows = self.sample.rows["train"][:_COMPARED_ROWS]
        return most(lambda row: begin_with_prompt(row.get(chosen), row.get(rejected)), rows)

    def _pair_of_answers(self, flag: str) -> str:
        return self.given.get(flag) or next((c.name for c in find_usual_columns(self.sample, flag)), "")

    @property
    def ranks_documents(self) -> bool:
        """Whether documents have grades, and queries have several documents."""
        return bool(self.grades) and any(c.distinct < len(c.filled) for c in self.prompts[:1])


def _can_be_answer(column: SampledColumn) -> bool:
    name = column.name.lower()
    is_class = column.is_label and not column.is_numeric and name in USUAL_NAMES["label"]
    return name not in _DOCUMENTS and not is_class


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
    possible, texts = best_fitting_objectives(sample, given), find_candidates("text", sample, given)
    alone = next((name for name, advice in known.items() if advice.reads_running_text and kind in advice.models), None)
    for form in list_row_forms(sample):
        raise form.error(sample.patterns, _instead(sample, kind) + (_OWN if form.convert is None else ""))
    if possible:
        what = f"these rows are for {' or '.join(possible)}, which does not work with this {kind} model"
        raise RecipeError("--model", what, "give another model, or name an objective with --objective")
    if alone is None or len(texts) != 1 or _seen(sample, given).is_text_alone:
        columns = ", ".join(f"{c.name} ({c.kind})" for c in sample.columns.values())
        fix = f"name one of {', '.join(known)}, and its columns{see_limits('objective')}"
        raise RecipeError("--objective", f"no objective fits these columns: {columns}", fix)
    _confirm_text_alone(request, sample, texts[0], alone)
    return alone


def _confirm_text_alone(request: NewRecipeRequest, sample: RowSample, text: SampledColumn, alone: str) -> None:
    others = [c for c in sample.columns.values() if c is not text and not c.is_incidental]
    named = ", ".join(f"`{c.name}` ({KIND_WORDS.get(c.kind, c.kind)})" for c in others)
    fix = f"to learn from `{text.name}` alone, add --objective {alone}; or name the columns of another objective"
    fix += next((f", such as --score {c.name}" for c in others if c.says_numbers), "")
    meaning = proposable_objectives()[alone].meaning
    error = RecipeError("--objective", f"no objective reads {named} of these rows", fix)
    request.confirm(f"Learn {meaning} from `{text.name}` alone?", error)

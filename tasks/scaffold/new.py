"""`evergreen new`: from data and a model to a checked recipe, its item in recipes.yaml and its deployment, or to nothing at all."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from params import RecipeError
from params.dvc_files import RECIPES
from params.foundation.artifacts import write_text_atomically
from params.sections.base import repo_id_problem
from tasks.diagnostics.check import check
from tasks.diagnostics.trace import token_lines
from tasks.recipes.loading import recipe_name_problem
from tasks.scaffold import choices, project, proposal
from tasks.scaffold.candidates import proposable_objectives
from tasks.scaffold.corpus import add_corpus, read_corpus
from tasks.scaffold.forms import rating_column
from tasks.scaffold.look import RowSample, read_source_sample
from tasks.scaffold.model_facts import ModelFacts, read_model_facts
from tasks.scaffold.plan import RecipePlan, plan_recipe
from tasks.scaffold.request import NEW_MODEL, NewRecipeRequest
from tasks.scaffold.sources import FoundSource, find_source
from trainer.objectives.advice.base import ModelKind
from trainer.reporting import signs_of_life
from trainer.runtime.imports import hide_packages_in_block

_CRON: Final = re.compile(r"\S+( \S+){4}")
_SHOWN_TOKENS: Final = 12
_SHOWN_CHARACTERS: Final = 200
_NEXT: Final = """
Next:
  evergreen rehearse {name}      the whole pipeline on few rows, publishing nowhere; estimates time and memory
  evergreen run {name}           the real run; publishes the model
  prefect --no-prompt deploy --name {name}      activate its schedule
  git add params/{name}.yaml recipes.yaml prefect.yaml{data} && git commit
To undo this: evergreen remove {name}"""


def create_recipe(request: NewRecipeRequest) -> None:
    """Write a recipe, its item and its deployment, check it, and say what comes next.

    Raises:
        RecipeError: the answer to a question is needed, flags do not fit, or a file holds something else under this name.
        DataError: the rows cannot be used.
        ModelError: the model cannot be used.
    """
    _check_request(request)
    root = project.require_project_root()
    signs_of_life.note("new: reads a sample of the rows")
    found = add_corpus(find_source(request, root), request, root)
    sample = read_source_sample(found.source, root)
    # transformers notes at its import what is installed
    unused = [] if "transformers" in sys.modules else ["peft", "torchao"]
    with hide_packages_in_block(*unused):
        signs_of_life.note("new: looks at the model")
        facts, kind = _model(request, sample, root)
        chosen = proposal.choose_objective_and_columns(request, sample, kind)
        print(f"{request.name}: learn {chosen.advice.meaning} ({chosen.objective})")
        print(*_seen(found, sample, chosen, facts), sep="\n")
        signs_of_life.note("new: measures the rows with the model's tokenizer")
        documents, more = read_corpus(found, chosen, root)
        plan = plan_recipe(found, chosen, sample, facts, request, documents=documents, more=more)
    for note in plan.quality.notes():
        print(f"  note: {note}")
    _check_set_aside(request, plan)
    signs_of_life.note("new: checks the recipe")
    text = project.render_recipe_yaml(request.name, chosen, sample, facts, plan)
    base = facts.path if facts and facts.revision is None else project.NO_BASE
    item = {"data": found.watched, "objective": chosen.objective, "base": base}
    _write(root, request, item, text)
    is_here = (root / found.watched).resolve().is_relative_to(root.resolve()) and (root / found.watched).is_file()
    # Large data goes to DVC instead: docs/own-data.md.
    data = f" {shlex.quote(found.watched)}" if is_here else ""
    print(*_one_row(chosen, plan), _NEXT.format(name=request.name, data=data), sep="\n")


def _check_request(request: NewRecipeRequest) -> None:
    if wrong := recipe_name_problem(request.name):
        raise RecipeError("NAME", f"{request.name!a} is no name: {wrong}", "choose another name")
    if not _CRON.fullmatch(request.schedule):
        what = f"{request.schedule!a} is not five fields: minute, hour, day, month, weekday"
        raise RecipeError("--schedule", what, 'write for example "0 3 * * *", every night at three')
    if request.max_quarantined is not None and not 0 <= request.max_quarantined < 1:
        what = f"{request.max_quarantined:g} is no share of the rows"
        raise RecipeError("--max-quarantined", what, "write a number from 0 to below 1, such as 0.1")
    repo_id = request.published_repo_id
    if "/" not in repo_id or (problem := repo_id_problem(repo_id)):
        what = f"the Hub refuses {repo_id!a}: {problem if '/' in repo_id else 'it has no owner'}"
        raise RecipeError("--repo-id", what, "write another OWNER/NAME")


def _model(request: NewRecipeRequest, sample: RowSample, root: Path) -> tuple[ModelFacts | None, ModelKind]:
    """Return the pretrained model, None for a new one, and its kind. Plain text alone gets a new one without being asked."""
    model = request.model
    known = proposable_objectives()
    named = [request.objective] if request.objective else proposal.best_fitting_objectives(sample, request.columns)
    found = [known[name] for name in named if name in known]
    if model is None and found and all(advice.reads_running_text for advice in found):
        model = NEW_MODEL
    if model is None:
        question = "Which model to start from: a local folder, or owner/name on the Hub?"
        fix = f"add --model FOLDER, --model OWNER/NAME, or --model {NEW_MODEL} for a small one from random weights"
        model = request.ask("--model", question, fix)
    if model == NEW_MODEL:
        return None, found[0].models[0] if request.objective and found else "decoder"
    facts = read_model_facts(model, root)
    return facts, facts.kind


def _seen(
    found: FoundSource, sample: RowSample, chosen: proposal.ObjectiveProposal, facts: ModelFacts | None
) -> Iterator[str]:
    more = {split: "" if total else " or more" for split, total in sample.totals.items()}
    yield f"  rows: {', '.join(f'{sample.estimated(split):,}{more[split]} {split}' for split in sample.rows)}"
    yield from (f"  {note}" for note in found.notes)
    if found.corpus:
        yield f"  documents that are searched: {found.corpus}"
    for flag, column in chosen.columns.items():
        yield f"  {flag}: column `{column}`" if column in sample.columns else f"  {flag}: columns {column!r}"
    yield from _seen_unread(sample, chosen)
    known = f"{facts.path}, {facts.model_type}, {facts.size} parameters" if facts else "small, from random weights"
    yield f"  model: {known}"


def _seen_unread(sample: RowSample, chosen: proposal.ObjectiveProposal) -> Iterator[str]:
    unused = [name for name in sample.columns if name not in chosen.read_columns()]
    if unused:
        reads_pair = "text-pair" in chosen.advice.columns.keys() - chosen.columns.keys()
        is_text = reads_pair and any(sample.columns[name].has_spaces for name in unused)
        hint = "; --text-pair names a second text, such as a title" if is_text else ""
        yield f"  columns that the objective does not read: {', '.join(unused)}{hint}"
    learns_answers = not {"completion", "messages"}.isdisjoint(chosen.columns)
    if learns_answers and (rating := rating_column(sample.columns)) in unused:
        yield f"  note: `{rating}` seems to say how good the answers are; bad ones are learned, too"


def _check_set_aside(request: NewRecipeRequest, plan: RecipePlan) -> None:
    """Ask before more rows are set aside than usual.

    Raises:
        RecipeError: nobody is there to ask, or `--max-quarantined` allows fewer.
    """
    quality, allowed = plan.quality, request.max_quarantined
    if quality.set_aside_share <= (choices.UNASKED_QUARANTINE if allowed is None else allowed):
        return
    aside = sum(quality.unusable.values())
    reasons = "; ".join(f"{n:,}: {why} ({quality.examples[why]})" for why, n in quality.unusable.items())
    what = f"{aside:,} of {quality.rows:,} rows would be set aside. {reasons}"
    needed = math.ceil(100 * min(1, 1.1 * quality.set_aside_share)) / 100
    error = RecipeError("the rows", what, f"fix them; or allow it with --max-quarantined {needed:g}")
    if allowed is not None:
        raise error
    request.confirm(f"Learn from the other {quality.rows - aside:,}?", error)


def _write(root: Path, request: NewRecipeRequest, item: Mapping[str, str], text: str) -> None:
    """Write what is not there yet, check it, and say what was written; after an error everything is as before."""
    name = request.name
    recipe, recipes, prefect = root / "params" / f"{name}.yaml", root / RECIPES, root / project.PREFECT
    before = {path: project.read_text_or_none(path) for path in (recipe, recipes, prefect)}
    if before[recipe] not in (None, text):
        fix = f"keep it as it is; or remove it first: evergreen remove {name}; or choose another name"
        raise RecipeError(str(recipe), "exists, and differs from what these flags and rows give today", fix)
    after = {
        recipe: text,
        recipes: project.recipes_yaml_with_item(before[recipes] or "", name, **item),
        prefect: project.prefect_yaml_with_deployment(before[prefect] or "", name, request.schedule),
    }
    try:
        for path, content in after.items():
            write_text_atomically(path, content)
        check(recipe)
    except BaseException:
        _restore(before)
        raise
    places = (f"params/{name}.yaml", f"its item in {RECIPES}", f"its deployment in {project.PREFECT}")
    changed = [place for place, path in zip(places, after, strict=True) if after[path] != before[path]]
    print(f"\n{'Wrote' if changed else 'Nothing to do: the project has'} {', '.join(changed or places)}")


def _restore(before: Mapping[Path, str | None]) -> None:
    for path, old in before.items():  # what is new goes first: it needs no room on the disk
        if old is None:
            path.unlink(missing_ok=True)
        elif path.read_text(encoding="utf-8") != old:
            write_text_atomically(path, old)


def _one_row(chosen: proposal.ObjectiveProposal, plan: RecipePlan) -> Iterator[str]:
    """Yield what becomes of a row of mean length, as `evergreen trace` shows it."""
    row, examples = plan.example
    yield "\nOne row, from the source to the model:"
    for column in chosen.read_columns():
        value = str(row.get(column))
        yield f"  {column}: {value[:_SHOWN_CHARACTERS]}{' ...' if len(value) > _SHOWN_CHARACTERS else ''}"
    for example in examples[:1]:
        lines = token_lines(plan.encoder, example, _SHOWN_TOKENS)
        yield f"  tokens ({len(example['input_ids'])}; * has a loss):"
        yield from (f"    {line}" for line in lines[: _SHOWN_TOKENS + 2])
        if rest := lines[_SHOWN_TOKENS + 2 :]:
            yield f"    ... {len(rest)} lines more"
        if rest and not isinstance(example.get("labels", []), list):
            yield f"    {rest[-1]}"

"""check: find the mistakes in a recipe in seconds, before anything is downloaded or trained.

It reports all problems together; an invalid section does not hide the problems of the others. What takes all of the data to
find out (labels, row counts, lengths) is left to the stages. `check` reads only the first rows of local files and functions,
for their columns.
"""

from __future__ import annotations

import glob
import importlib.util
import inspect
import logging
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from params import EvergreenError, Problem
from params.dvc_files import RECIPES, read_recipes_yaml_item
from params.foundation.artifacts import Artifacts
from params.importing import import_with_arguments, is_project_file
from params.problems import Key, suggestion
from params.schema import Launch, ObjectiveChoice, Training
from params.sections.evaluation import Evaluation
from tasks.diagnostics import model_checks, source_checks
from tasks.publishing.secrets import find_secrets
from tasks.recipes.loading import Document, parse, read_yaml_document, valid_sections
from trainer import objectives
from trainer.checkpoints.sealed import newest_checkpoint_step
from trainer.conflicts import find_training_conflicts
from trainer.identity import deciding_keys, find_unwatched_code, recipe_identity
from trainer.job import SECTIONS
from trainer.loop import extensions, own_metric_names
from trainer.loop.batch import micro_batch_and_accumulation
from trainer.loop.other_length import find_runs_of_other_length, find_what_depends_on_steps
from trainer.model import config_check
from trainer.objectives.bases.likelihood import ClassifierObjective
from trainer.objectives.bases.metrics.metric import directions, directions_in_training, names_where
from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)
LIMIT_S = 60.0
"""How long each check may run the code that a recipe names."""


def check(path: Path) -> None:
    """Check the recipe at `path`.

    Raises:
        RecipeError: it has problems; the error lists each with its file:line, key and fix.
    """
    document = read_yaml_document(path)
    if problems := find_recipe_problems(document):
        raise document.error(problems)
    logger.info("check: %s is sound", path)


def find_recipe_problems(document: Document) -> list[Problem]:
    problems = [*map(_say_where_argument_belongs, parse(document)[1])]
    sections = valid_sections(document)
    config = (sections["model"].config if "model" in sections else None) or {}
    training: Training | None = sections.get("training")
    chosen = {"lr_scheduler": training.lr_scheduler, "optimizer": training.optimizer} if training else {}
    valid = _artifacts(document).checked_settings if document.path.parent.name == "params" else None
    wait_for_errors = config_check.start_transformers_settings_check(config, chosen, valid)
    known = {**sections, "sections": sections, "document": document}

    def build(objective: ObjectiveChoice) -> list[Problem]:
        if not (found := objectives.find_option_problems(objective)):
            known["method"] = sections["method"] = objectives.build_objective(objective)
        return found

    for find_problems in (build, *_CHECKS):
        names = inspect.signature(find_problems).parameters
        if all(name in known for name in names):
            problems += _in_time(find_problems, *(known[name] for name in names))
    values: dict[Key, str] = {("training", name): value for name, value in chosen.items()}
    values["model", "config", "model_type"] = str(config.get("model_type"))
    for key, what, instead in wait_for_errors():
        problems.append(Problem(key, what, _closest(values.get(key, key[-1]), instead)))
    return problems


def _say_where_argument_belongs(problem: Problem) -> Problem:
    from trainer.loop.arguments import place_of_argument

    is_unknown = problem.key[:-1] == ("training",) and problem.what == "no such key"
    fix = place_of_argument(str(problem.key[-1])) if is_unknown else None
    return replace(problem, fix=fix) if fix else problem


def _in_time(find_problems: Callable[..., Iterable[Problem]], *arguments: object) -> list[Problem]:
    """Return what `find_problems` finds, or has found when the code that the recipe names takes too long."""
    problems: list[Problem] = []
    errors: list[BaseException] = []

    def find() -> None:
        try:
            problems.extend(find_problems(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=find, daemon=True)  # it does not keep the process alive
    thread.start()
    thread.join(LIMIT_S)
    if thread.is_alive():
        stack = traceback.extract_stack(sys._current_frames().get(thread.ident or 0))  # noqa: SLF001
        ours = [f"{one.filename}:{one.lineno}" for one in stack if is_project_file(Path(one.filename))]
        where = ours[-1] if ours else "code"
        logger.warning("check: %s takes longer than %g s, so what depends on it was not checked", where, LIMIT_S)
        return list(problems)
    if errors:
        raise errors[0]
    return problems


def _artifacts(document: Document) -> Artifacts:
    return Artifacts(document.path.stem, document.path.resolve().parent.parent)


def _tell_of_run_of_other_length(document: Document, sections: dict[str, Any]) -> tuple[()]:
    """Say whether the training goes on from a run with another number of steps, as far as the recipe tells."""
    if not {"seed", "objective", "model", "training", "evaluation"} <= sections.keys():
        return ()
    training, artifacts = sections["training"], _artifacts(document)
    keys = {name: sections[name] for name in SECTIONS if name in sections} | {"metrics": sections["evaluation"].metrics}
    for other in find_runs_of_other_length(artifacts, recipe_identity(deciding_keys(keys)), by_recipe=True):
        if why := find_what_depends_on_steps(training, sections["objective"]):
            logger.info("check: training starts at step 0, not from run %s: in `training`, %s", other.name, why)
        elif 0 < (step := newest_checkpoint_step(other)) < (training.max_steps or math.inf):
            message = "check: training goes on from step %d of run %s, if rows and code are as they were"
            logger.info(message, step, other.name)
    return ()


def _expectation_problems(validation: Any) -> Iterator[Problem]:
    """Find unknown expectations, by the names of their modules: importing Great Expectations would take seconds."""
    spec = importlib.util.find_spec("great_expectations")
    assert spec is not None
    assert spec.origin is not None
    known = sorted(path.stem for path in (Path(spec.origin).parent / "expectations" / "core").glob("*expect_*.py"))
    for i, expectation in enumerate(validation.expectations):
        if expectation.type not in known:
            key = ("validation", "expectations", i, "type")
            yield Problem(key, f"there is no expectation {expectation.type!r}", _closest(expectation.type, known))


def _metric_problems(
    training: Training, objective: ObjectiveChoice, evaluation: Evaluation, sections: dict[str, Any]
) -> Iterator[Problem]:
    own = evaluation.metrics
    if own:
        for name, call, values in (("function", own.function, 1), ("preprocess_logits", own.preprocess_logits, 2)):
            if call:
                yield from _error(
                    ("evaluation", "metrics"), import_with_arguments, call, f"evaluation.metrics.{name}", values
                )
    if (cls := objectives.find_objective_class(objective.name)) is None:
        return
    method: Objective[Any] | None = sections.get("method")
    known = [*directions_in_training((method or cls).metrics)]  # its options may decide which
    yield from extensions.find_extension_problems(training, method.trainer_class) if method else ()
    if own and method and (reason := method.why_no_own_metrics()):
        yield Problem(("evaluation", "metrics"), f"{objective.name} {reason}", method.instead_of_own_metrics)
    yield from own_metric_names.find_metrics_computed_twice(own, method or cls)
    known += own.directions if own else []
    if training.best_metric not in known:
        what = f"{objective.name} does not compute {training.best_metric!r}"
        yield Problem(("training", "best_metric"), what, suggestion(training.best_metric, known, "metrics"))


def _gate_problems(objective: ObjectiveChoice, evaluation: Evaluation, sections: dict[str, Any]) -> Iterator[Problem]:
    """Find metrics that the gate needs but that do not exist or cannot be compared, and slices that cannot be computed."""
    for i, slice_by in enumerate(evaluation.slices):
        if slice_by.function:
            name = f"evaluation.slices.{i}.function"
            yield from _error(("evaluation", "slices", i), import_with_arguments, slice_by.function, name, 1)
    if (cls := objectives.find_objective_class(objective.name)) is None:
        return
    gate = evaluation.gate
    found = sections.get("method") or cls
    resampled = [*directions(found.metrics)]
    known = [*resampled, *(evaluation.metrics.directions if evaluation.metrics else ())]
    required = [(("floors", name), known) for name in gate.floors]
    required += [(("slice_floors", name), resampled) for name in gate.slice_floors]
    required += [(("metric", gate.metric), resampled)] if gate.metric else []
    for (key, name), usable in required:
        if name not in usable:
            what = f"{name} has no confidence interval" if name in known else f"unknown metric {name}"
            place = ("evaluation", "gate", key) if key == "metric" else ("evaluation", "gate", key, name)
            yield Problem(place, what, suggestion(name, usable, "metrics"))
    for name in gate.slice_floors.keys() & found.metrics.keys():
        if instead := found.metrics[name].on_slices:
            what = f"a slice has no {name}: it needs the rows of all labels"
            yield Problem(("evaluation", "gate", "slice_floors", name), what, f"use {instead}")
    if gate.label_floors and not (issubclass(cls, ClassifierObjective) and cls.counts_labels):
        what = f"{objective.name} has no results by label"
        yield Problem(("evaluation", "gate", "label_floors"), what, "remove this key, or use `floors`")
    of_tokens = names_where(found.metrics, "per_tokenizer")
    if gate.metric in of_tokens and found.main_metric not in of_tokens:
        what = f"{gate.metric} cannot be compared with a champion that has another tokenizer"
        yield Problem(("evaluation", "gate", "metric"), what, f"use {found.main_metric}, or remove this key")
    if (gate.slice_floors or gate.slice_margin) and not evaluation.slices:
        what = "`slice_floors` and `slice_margin` need slices, and there are none"
        yield Problem(("evaluation", "gate"), what, "name columns or functions in evaluation.slices")


def _launch_problems(training: Training, launch: Launch) -> Iterator[Problem]:
    from trainer.loop.sharding import check_deepspeed_installed, check_gpus_to_shard_over

    yield from _error(("launch", "num_processes"), micro_batch_and_accumulation, training.global_batch_size, launch)
    if launch.accelerate_config and not Path(launch.accelerate_config).is_file():
        what = f"there is no file {launch.accelerate_config}"
        yield Problem(("launch", "accelerate_config"), what, "check the path; params/accelerate has examples")
    for check_sharding in (check_deepspeed_installed, check_gpus_to_shard_over):
        yield from _error(("launch", "accelerate_config"), check_sharding, launch)


def _publish_problems(publish: Any, launch: Launch) -> Iterator[Problem]:
    from tasks.hub_client.connection import LOCAL, resolve_hub_endpoint
    from tasks.hub_client.token import require_token_for_hub

    def require_token() -> None:
        endpoint = resolve_hub_endpoint(publish.endpoint)
        if endpoint != LOCAL and not (publish.dry_run and launch.mirror == "none"):
            require_token_for_hub(endpoint)

    yield from _error(("publish", "endpoint"), require_token)


def _conflict_problems(sections: dict[str, Any]) -> list[Problem]:
    method: Objective[Any] | None = sections.get("method")
    for remark in method.remarks(sections["model"]) if method and "model" in sections else ():
        logger.info("check: %s", remark)
    others = {name: sections.get(name) for name in ("model", "training", "launch")}
    return find_training_conflicts(objective=method, **others)


def _secret_problems(document: Document) -> list[Problem]:
    """Find secrets in the recipe, which is published with the model."""
    fix = "remove it; put tokens into HF_TOKEN, and write `${NAME}` for a password in a variable"
    return [Problem((), found, fix) for found in find_secrets("line", document.path)]


def _dvc_problems(document: Document, sections: dict[str, Any]) -> Iterator[Problem]:
    """Find differences between a recipe in params/ and its item in recipes.yaml."""
    root = document.path.resolve().parent.parent
    if document.path.resolve().parent.name != "params" or not (root / RECIPES).is_file():
        return
    name = document.path.stem
    artifacts = Artifacts(name, root)
    entry = read_recipes_yaml_item(artifacts)
    if missing := {"data", "objective", "base", "code"} - entry.keys():
        chosen = f"{sections['objective'].name}.py" if "objective" in sections else "..."
        line = f"data: ..., objective: trainer/objectives/{chosen}, base: trainer/rewards.py, code: trainer/losses.py"
        fix = f"write `{name}: {{{line}}}` under `recipes:` there, as its first lines explain"
        yield Problem((), f"{RECIPES} has no {', '.join(sorted(missing))} for this recipe", fix)
        return
    named = ("objective", "training", "evaluation")
    keys = {section: sections[section].model_dump(mode="json") for section in named if section in sections}
    for section, what, fix in find_unwatched_code(artifacts, keys):
        yield Problem((section,), f"{RECIPES} {what}", fix)
    yield from model_checks.find_unwatched_models(root, name, entry, sections)
    suites = sections["evaluation"].suites if "evaluation" in sections else ()
    sources = [(f"evaluation.suites.{number}.source", suite.source) for number, suite in enumerate(suites)]
    if "data" in sections:
        sources += [(f"data.{key}", source) for key, source in sections["data"].all_sources.items()]
    for place, source in sources:
        for path, key in source_checks.find_read_paths(root, source).items():
            is_there = glob.glob(path, root_dir=root, recursive=True)  # noqa: PTH207 - takes absolute paths too
            if is_there and not (root / path).resolve().is_relative_to((root / entry["data"]).resolve()):
                what = f"{RECIPES} watches {entry['data']} for this recipe, which does not contain {path}"
                fix = "set `data:` there to the file or folder that does"
                fix += "; the files of several sources stand in one folder" if len(sources) > 1 else ""
                yield Problem((*place.split("."), key), what, fix)


def _error(key: Key, function: Callable[..., object], *args: object) -> list[Problem]:
    """Call `function`, and return its error as a problem: of the key that the error names, or else of `key`."""
    try:
        function(*args)
    except EvergreenError as error:
        return [Problem.of(error, key) if error.key else Problem(key, error.what, error.fix)]
    return []


def _closest(name: str, known: list[str]) -> str:
    fix = suggestion(name, known)
    return fix if fix.startswith("did") else "check the spelling"


_CHECKS: list[Callable[..., Iterable[Problem]]] = [
    source_checks.find_missing_columns,
    source_checks.find_corpus_problems,
    source_checks.find_correction_problems,
    source_checks.find_suite_problems,
    source_checks.find_weight_problems,
    source_checks.warn_of_torn_groups,
    source_checks.warn_of_long_warmup,
    _tell_of_run_of_other_length,
    _expectation_problems,
    model_checks.find_position_limit_problem,
    model_checks.find_unfit_model_problem,
    model_checks.find_model_that_reads_ahead,
    model_checks.find_unmarked_ends_of_texts,
    model_checks.find_generation_problem,
    model_checks.find_lora_problem,
    _metric_problems,
    _gate_problems,
    _launch_problems,
    _publish_problems,
    model_checks.find_rows_that_no_release_names,
    model_checks.find_adapter_publishing_problems,
    model_checks.find_unusable_start_models,
    lambda method: method.find_model_problems(),
    _conflict_problems,
    _dvc_problems,
    _secret_problems,
]
"""Checks; the names of their parameters are those of the sections that they need to be valid, `method` for the objective, built, or
`sections` for all of these that there are.
"""

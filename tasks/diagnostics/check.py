"""check: find the mistakes in a recipe in seconds, before anything is downloaded or trained.

It reports all problems together; an invalid section does not hide the problems of the others. The stages find what takes all
of the data to see (labels, row counts, lengths). `check` reads only the first rows of local files and functions, for their
columns.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from params import EvergreenError, Problem, RecipeError
from params.importing import bind, source_files
from params.loading import Document, parse, read, suggestion, valid_sections
from params.schema import Evaluation, Files, Function, Launch, Model, ObjectiveChoice, PretrainedTokenizer, Training
from tasks.ingestion.source import open_source
from trainer import objectives
from trainer.conflicts import conflicts
from trainer.loop import extensions
from trainer.model import config_check

logger = logging.getLogger(__name__)


def check(path: Path) -> None:
    """Check the recipe at `path`.

    Raises:
        RecipeError: it has problems; the error lists each with its file:line, key and fix.
    """
    document = read(path)
    problems = all_problems(document)
    if problems:
        raise document.error(problems)
    logger.info("check: %s is sound", path)


def all_problems(document: Document) -> list[Problem]:
    """Return all problems of a recipe."""
    _, problems = parse(document)
    sections = valid_sections(document)
    config = sections["model"].config if "model" in sections else None
    flaws = config_check.start_check(config) if config else list
    for find_problems, names in _CHECKS:
        if all(name in sections for name in names):
            problems += find_problems(*(sections[name] for name in names))
    problems += _conflict_problems(sections)
    problems += _dvc_problems(document, sections)
    problems += _secret_problems(document)
    for name, what, known in flaws():
        written = str(config["model_type"]) if config and name == "model_type" else name
        problems.append(Problem(("model", "config", *([name] if name else [])), what, _closest(written, known)))
    return problems


def _objective_problems(objective: ObjectiveChoice) -> list[Problem]:
    return objectives.option_problems(objective)


def _conflict_problems(sections: dict[str, Any]) -> list[Problem]:
    choice: ObjectiveChoice | None = sections.get("objective")
    return conflicts(
        objective=objectives.build(choice) if choice and not objectives.option_problems(choice) else None,
        model=sections.get("model"),
        training=sections.get("training"),
        launch=sections.get("launch"),
    )


def _column_problems(objective: ObjectiveChoice, data: Any, evaluation: Evaluation) -> Iterator[Problem]:
    """Columns that the split, the objective or a slice needs and that the first rows of the source do not have."""
    try:
        source = open_source(data.source)
        if not isinstance(data.source, Files | Function):
            return  # reading its first rows takes a query or a download
        head = next(iter(source.batches("train")), None)
    except EvergreenError as error:
        default = {"files": "train", "function": "function", "sql": "url"}.get(data.source.kind, "repo_id")
        yield Problem.of(error, ("data", "source", default))
        return
    columns = head.rows.schema.names if head else []
    for i, slice_by in enumerate(evaluation.slices):
        if slice_by.column is not None and slice_by.column not in columns:
            what = f"the source has no column `{slice_by.column}`"
            yield Problem(("evaluation", "slices", i), what, suggestion(slice_by.column, columns, "columns"))
    for column in data.split.by:
        if column not in columns:
            yield Problem(
                ("data", "split", "by"), f"the source has no column `{column}`", suggestion(column, columns, "columns")
            )
    if not objectives.option_problems(objective):
        for column in objectives.build(objective).columns():
            if column not in columns:
                fix = f"{suggestion(column, columns, 'columns')}; the objective's `..._column` options name it"
                yield Problem(("objective",), f"needs a column `{column}`, which the source does not have", fix)


def _expectation_problems(validation: Any) -> Iterator[Problem]:
    """Expectations that do not exist. Names of modules are names of expectations, and listing them imports nothing."""
    spec = importlib.util.find_spec("great_expectations")
    assert spec is not None
    assert spec.origin is not None
    core = Path(spec.origin).parent / "expectations" / "core"
    known = sorted(p.stem for p in core.glob("*expect_*.py"))
    for i, expectation in enumerate(validation.expectations):
        if expectation.type not in known:
            key = ("validation", "expectations", i, "type")
            yield Problem(key, f"there is no expectation {expectation.type!r}", _closest(expectation.type, known))


def _model_problems(model: Model) -> Iterator[Problem]:
    if model.pretrained is not None:
        yield from _pretrained_problems(("model", "pretrained"), model.pretrained, weights=True)


def _tokenizer_problems(tokenization: Any) -> Iterator[Problem]:
    if isinstance(tokenization.tokenizer, PretrainedTokenizer):
        yield from _pretrained_problems(
            ("tokenization", "tokenizer", "path"), tokenization.tokenizer.path, weights=False
        )


def _pretrained_problems(key: tuple[str, ...], path: str, *, weights: bool) -> Iterator[Problem]:
    from trainer.model.network import has_only_pickle

    folder = Path(path)
    if folder.is_dir():
        if weights and has_only_pickle(folder):
            what = f"{path} has weights only as pickle files, which are never loaded"
            yield Problem(key, what, "load them where you trust them, and write safetensors with `save_pretrained`")
        elif not (folder / ("config.json" if weights else "tokenizer.json")).exists():
            yield Problem(key, f"{path} has no {'config.json' if weights else 'tokenizer.json'}", "check the folder")
    elif path.startswith((".", "/", "~")) or path.count("/") != 1:
        yield Problem(
            key, f"there is no folder {path}", "give a local folder, or owner/name for a repository on the Hub"
        )


def _length_problems(model: Model, tokenization: Any) -> Iterator[Problem]:
    positions = (model.config or {}).get("max_position_embeddings", (model.config or {}).get("n_positions"))
    if isinstance(positions, int) and positions < tokenization.max_length:
        what = f"{tokenization.max_length} tokens exceed the model's {positions} positions"
        yield Problem(("tokenization", "max_length"), what, f"use at most {positions}")


def _training_problems(training: Training) -> Iterator[Problem]:
    from transformers import SchedulerType
    from transformers.training_args import OptimizerNames

    for key, value, kind in (
        ("lr_scheduler", training.lr_scheduler, SchedulerType),
        ("optimizer", training.optimizer, OptimizerNames),
    ):
        known = [str(member.value) for member in kind]
        if value not in known:
            yield Problem(("training", key), f"transformers has no {key} {value!r}", _closest(value, known))


def _extension_problems(training: Training, objective: ObjectiveChoice) -> Iterator[Problem]:
    if not objectives.option_problems(objective):
        yield from extensions.problems(training, objectives.find(objective.name).trainer_class)


def _metric_problems(training: Training, objective: ObjectiveChoice, evaluation: Evaluation) -> Iterator[Problem]:
    own = evaluation.metrics
    if own:
        for name, call, values in (("function", own.function, 1), ("preprocess_logits", own.preprocess_logits, 2)):
            try:
                if call:
                    bind(call, f"evaluation.metrics.{name}", values)
            except RecipeError as error:
                yield Problem.of(error, ("evaluation", "metrics"))
    if objective.name in objectives.names():
        known = list(objectives.find(objective.name).metrics)
        for name in own.directions if own else ():
            if name in known:
                key = ("evaluation", "metrics", "directions", name)
                yield Problem(key, f"{objective.name} already computes {name}", "give your metric another name")
        known += own.directions if own else []
        if training.best_metric not in known:
            what = f"{objective.name} does not compute {training.best_metric!r}"
            yield Problem(("training", "best_metric"), what, suggestion(training.best_metric, known, "metrics"))


def _gate_problems(objective: ObjectiveChoice, evaluation: Evaluation) -> Iterator[Problem]:
    """Metrics that the gate needs but that do not exist or cannot be compared, and functions of slices."""
    if objective.name not in objectives.names():
        return
    found, gate = objectives.find(objective.name), evaluation.gate
    resampled = [*found.metrics, *found.evaluate_only_metrics]
    known = [*resampled, *(evaluation.metrics.directions if evaluation.metrics else ())]
    required: list[tuple[tuple[str, ...], str, list[str]]] = [
        *((("floors", name), name, known) for name in gate.floors),
        *((("slice_floors", name), name, resampled) for name in gate.slice_floors),
    ]
    if gate.metric:
        required.append((("metric",), gate.metric, resampled))
    for key, name, usable in required:
        if name not in usable:
            what = f"{name} has no confidence interval" if name in known else f"unknown metric {name}"
            yield Problem(("evaluation", "gate", *key), what, suggestion(name, usable, "metrics"))
    if gate.metric in found.tokenizer_dependent and found.main_metric not in found.tokenizer_dependent:
        what = f"{gate.metric} cannot be compared with a champion that has another tokenizer"
        yield Problem(("evaluation", "gate", "metric"), what, f"use {found.main_metric}, or remove this key")
    if (gate.slice_floors or gate.slice_margin) and not evaluation.slices:
        what = "there are no slices to hold to `slice_floors` or `slice_margin`"
        yield Problem(("evaluation", "gate"), what, "name columns or functions in evaluation.slices")
    for i, slice_by in enumerate(evaluation.slices):
        try:
            if slice_by.function:
                bind(slice_by.function, f"evaluation.slices.{i}.function", 1)
        except RecipeError as error:
            yield Problem.of(error, ("evaluation", "slices", i))


def _launch_problems(training: Training, launch: Launch) -> Iterator[Problem]:
    from trainer.loop.batch import split_batch
    from trainer.loop.sharding import check_installed

    try:
        split_batch(training.global_batch_size, launch)
    except EvergreenError as error:
        yield Problem(("launch", "num_processes"), error.what, error.fix)
    if launch.accelerate_config and not Path(launch.accelerate_config).is_file():
        what = f"there is no file {launch.accelerate_config}"
        yield Problem(("launch", "accelerate_config"), what, "check the path; params/accelerate has examples")
    try:
        check_installed(launch)
    except EvergreenError as error:
        yield Problem(("launch", "accelerate_config"), error.what, error.fix)


def _publish_problems(publish: Any, launch: Launch) -> Iterator[Problem]:
    from tasks.hub_client.connection import LOCAL, chosen_endpoint

    try:
        endpoint = chosen_endpoint(publish.endpoint)
    except EvergreenError as error:
        yield Problem(("publish", "endpoint"), error.what, error.fix)
        return
    if endpoint == LOCAL or (publish.dry_run and launch.mirror == "none"):
        return
    from huggingface_hub import get_token

    if not get_token():
        yield Problem(
            ("publish", "endpoint"), f"no token for {endpoint}", "set HF_TOKEN, or log in with `hf auth login`"
        )


def _secret_problems(document: Document) -> Iterator[Problem]:
    """Secrets in the recipe, which is published with the model."""
    from tasks.publishing.secrets import find_secrets

    for found in find_secrets("line", document.path):
        yield Problem(
            (), found, "remove it; put tokens into HF_TOKEN, and write `${NAME}` for a password in a variable"
        )


def _dvc_problems(document: Document, sections: dict[str, Any]) -> Iterator[Problem]:
    """Differences between a recipe in params/ and its entry in dvc.yaml."""
    root = document.path.resolve().parent.parent
    if document.path.resolve().parent.name != "params" or not (root / "dvc.yaml").is_file():
        return
    try:
        entry = read(root / "dvc.yaml").content["vars"][0]["recipes"][document.path.stem]
        watched, objective, code = (
            (root / entry["data"]).resolve(),
            entry["objective"],
            (root / entry["code"]).resolve(),
        )
    except (KeyError, IndexError, TypeError):
        fix = (
            f"add `{document.path.stem}: {{data: ..., objective: ..., code: trainer/losses.py}}` under `recipes:` there"
        )
        yield Problem((), "dvc.yaml has no entry for this recipe with its data, objective and code", fix)
        return
    if "evaluation" in sections and "metrics" not in document.content["evaluation"]:
        yield Problem(("evaluation",), "`metrics` is missing, and DVC watches it", "write `metrics: null`")
    for part in ("objective", "training", "evaluation"):
        named = source_files(sections[part].model_dump(mode="json")) if part in sections else ()
        for name, path in named:
            inside = path.is_relative_to(root) and not path.is_relative_to(root / ".venv")
            if inside and not path.is_relative_to(root / "trainer") and code not in (path, *path.parents):
                what = f"dvc.yaml watches {entry['code']} for this recipe, which does not contain {name}"
                yield Problem((part,), what, "set `code:` there to the file or folder that does")
    if "objective" in sections and objective != sections["objective"].name:
        what = f"dvc.yaml lists this recipe with objective {objective}"
        yield Problem(("objective", "name"), what, f"write `objective: {sections['objective'].name}` there")
    source = sections["data"].source if "data" in sections else None
    if isinstance(source, Files):
        for split in ("train", "validation", "test"):
            pattern = getattr(source, split)
            if pattern and watched not in ((root / pattern).resolve(), *(root / pattern).resolve().parents):
                what = f"dvc.yaml watches {entry['data']} for this recipe, which does not contain {pattern}"
                yield Problem(("data", "source", split), what, "set `data:` there to the file or folder that does")


def _closest(name: str, known: list[str]) -> str:
    fix = suggestion(name, known)
    return fix if fix.startswith("did") else "check the spelling"


_CHECKS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (_objective_problems, ("objective",)),
    (_column_problems, ("objective", "data", "evaluation")),
    (_expectation_problems, ("validation",)),
    (_model_problems, ("model",)),
    (_tokenizer_problems, ("tokenization",)),
    (_length_problems, ("model", "tokenization")),
    (_training_problems, ("training",)),
    (_extension_problems, ("training", "objective")),
    (_metric_problems, ("training", "objective", "evaluation")),
    (_gate_problems, ("objective", "evaluation")),
    (_launch_problems, ("training", "launch")),
    (_publish_problems, ("publish", "launch")),
]
"""Checks, and the sections that each of them needs to be valid."""

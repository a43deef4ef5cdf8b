"""How one stage of the list in params/foundation/stages.py is run from a recipe file."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from params import DataError, InputsChangedError, Recipe
from params.foundation.artifacts import Artifacts, translate_disk_errors
from params.foundation.stages import PIPELINE, Stage, stage_named
from tasks.progress import end_process_if_idle
from tasks.recipes.loading import load
from tasks.stage_inputs import StageInputsSnapshot, check_recipe_matches_snapshot
from tasks.stages import Report


def run_stage(name: str, recipe_path: Path) -> Report:
    """Run one stage of the recipe at `recipe_path`. The working directory must be the project's root.

    Raises:
        DataError: an earlier stage has not run.
        InputsChangedError: the recipe, the code or the data was edited while the stage ran, or since the model was trained.
    """
    stage, artifacts = stage_named(name), Artifacts(recipe_path.stem)
    inputs = StageInputsSnapshot.read(name, artifacts)  # before the recipe and the stage's code are read
    recipe = load(recipe_path)
    check_recipe_matches_snapshot(inputs)
    for needed in stage.needs:
        folder: Path = getattr(artifacts, needed)
        if not folder.exists():
            maker = _maker_of(folder, artifacts)
            fix = f"run `evergreen {maker.name} {recipe_path}` first"
            raise DataError(str(folder), f"{name} needs what {maker.name} makes, and it is missing", fix)
    if "model" in stage.needs:
        _refuse_model_of_another_run(recipe, artifacts)
    with end_process_if_idle(name, idle_limit_s(name, recipe)), translate_disk_errors(artifacts.run):
        if recipe.launch.data_cluster:  # its workers have other working directories
            artifacts = Artifacts(artifacts.recipe, Path.cwd())
        report = call_stage_function(name, artifacts, recipe, inputs)
    inputs.check()
    return report


def _maker_of(path: Path, artifacts: Artifacts) -> Stage:
    return next(
        stage for stage in PIPELINE if any(path.is_relative_to(getattr(artifacts, made)) for made in stage.makes)
    )


def _refuse_model_of_another_run(recipe: Recipe, artifacts: Artifacts) -> None:
    """Fail if other data, other code or another recipe has trained the model."""
    from trainer.job import Job

    report = artifacts.report("train")
    trained = json.loads(report.read_text(encoding="utf-8"))["run"]
    if trained not in {job.folder.name for job in Job.arms_of(recipe, artifacts)}:
        what = f"the model is that of run {trained}, which had another recipe, other code or other data"
        raise InputsChangedError(str(report), what, f"run `evergreen train {artifacts.recipe_path}`, or the whole flow")


def call_stage_function(
    name: str, artifacts: Artifacts, recipe: Recipe, inputs: StageInputsSnapshot | None = None
) -> Report:
    """Call the function of a stage; `inputs` are those that DVC would see, by default as they are now."""
    function, more = import_stage_function(name), {}
    if "inputs" in inspect.signature(function).parameters:
        more["inputs"] = inputs or StageInputsSnapshot.read(name, artifacts)
    return function(artifacts, **stage_arguments_from_recipe(name, recipe), **more)


def import_stage_function(name: str) -> Callable[..., Report]:
    module = importlib.import_module(f"tasks.{stage_named(name).folder}.stage")
    function: Callable[..., Report] = getattr(module, name)
    return function


def stage_arguments_from_recipe(name: str, recipe: Recipe) -> dict[str, Any]:
    return {section.rpartition(".")[2]: attrgetter(section)(recipe) for section in stage_named(name).sections}


def idle_limit_s(name: str, recipe: Recipe) -> float:
    """Return how long a stage may make no progress; waits with a limit of their own come on top."""
    own = stage_named(name).may_wait_s
    more: float = attrgetter(own)(recipe) if own else 0.0
    return recipe.launch.stage_timeout_s + more

"""train: supervise one training, from tokens to a model.

`accelerate launch -m trainer.worker` trains in a folder outside of DVC's outputs. Its name is the key of everything that
determines the run: an interrupted run resumes there, and a changed one starts with an empty folder of its own. Only a
finished run becomes artifacts: model/ (best weights and tokenizer), checkpoint/ (the last full state), history/ (the log).

Under DVC, the folder of a finished run stays until dvc.lock records the training. If DVC is killed before, or cannot write
to its cache, it deletes the artifacts and runs the stage again, which then takes them from the folder.
"""

from __future__ import annotations

import csv
import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from params import ModelError, Recipe, RecipeError
from params.dvc_files import RECIPES, is_training_recorded
from params.foundation.artifacts import Artifacts, replace_folder_atomically
from params.foundation.file_lock import hold_file_lock
from params.problems import problems_error
from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.evaluation import OwnMetrics
from tasks.lineage.ancestors import find_base_commit
from tasks.lineage.learned_rows import record_learned_rows
from tasks.mirror.fetch import fetch_before_training
from tasks.mirror.upload import upload_during_run
from tasks.recipes.loading import load
from tasks.stages import read_report, save_report
from tasks.training.model_folder import check_same_metrics, complete_model_folder
from tasks.training.report import TrainingReport
from tasks.training.run_folders import delete_superseded_run_folders, keep_finished_run, mark_runs_as_last_started
from tasks.training.supervisor import supervise_training
from tasks.training.versions import git_commit_with_dirty_mark, training_library_versions
from trainer import objectives
from trainer.checkpoints import sealed
from trainer.checkpoints.resume import prepare_resume
from trainer.conflicts import find_continual_conflicts
from trainer.data import tokens
from trainer.identity import find_unwatched_code, package_versions
from trainer.job import Job
from trainer.loop.other_length import continue_run_of_other_length
from trainer.model import network
from trainer.model.start_model import resolve_start
from trainer.objectives.bases.objective import Objective
from trainer.runtime.memory import import_network_code
from trainer.start import read_pinned_start

logger = logging.getLogger(__name__)


def train(
    artifacts: Artifacts,
    *,
    seed: int,
    objective: ObjectiveChoice,
    model: Model,
    training: Training,
    launch: Launch,
    metrics: OwnMetrics | None = None,
) -> TrainingReport:
    """Train the model, or finish an interrupted training.

    Raises:
        ModelError: the model cannot be built or trained as the recipe asks.
        TransientError: another process trains this recipe; or the training was killed, stalled or asked to stop, and the
            next start resumes from its last checkpoint.
        InputsChangedError: the code was edited before a process of the training imported it.
        RecipeError: DVC would not notice an edit of code that decides the weights, or sections do not fit together.
        StorageError: the disk is full; the last checkpoint is intact.
    """
    read = {"seed": seed, "objective": objective, "model": model, "training": training, "metrics": metrics}
    method = objectives.build_objective(objective)
    if found := [*find_continual_conflicts(method, model, training, launch)]:
        raise problems_error(found)  # the worker sees one start only
    arms = Job.plan_arms(artifacts, launch, read)
    sections = arms[0].model_dump(mode="json", include={"objective", "training", "metrics"})
    for _, what, fix in find_unwatched_code(artifacts, sections) if "DVC_STAGE" in os.environ else ():
        raise RecipeError(str(RECIPES), f"{artifacts.recipe}: {what}", fix)
    with hold_file_lock(artifacts.train_lock, f"a training of {artifacts.recipe}"):
        delete_recorded_run_folder(artifacts)
        recipe = load(artifacts.recipe_path)
        commit = git_commit_with_dirty_mark(artifacts.root, recipe)
        mark_runs_as_last_started(artifacts, [job.folder.name for job in arms])
        for job in arms:
            if not _is_finished(job):
                _train(artifacts, job, recipe, [other.folder for other in arms if other is not job])
        report = _collect(artifacts, arms, commit)
        delete_superseded_run_folders(artifacts)
        if "DVC_STAGE" not in os.environ:
            keep_finished_run(artifacts, artifacts.checkpoints / report.run)
    return report


def _train(artifacts: Artifacts, job: Job, recipe: Recipe, others: Sequence[Path]) -> None:
    if (artifacts.finished_run / job.folder.name).exists() and "DVC_STAGE" in os.environ:
        why = "DVC deletes results that it does not know, such as those of `evergreen train`"
        logger.warning("train: run %s has finished before, and trains again: %s", job.folder.name, why)
    fetch_before_training(artifacts, job, recipe.publish)
    rule = job.training.resume
    if rule == "auto":
        continue_run_of_other_length(artifacts, job)
    with upload_during_run(artifacts, job.launch, job.folder.name):
        again = "auto" if rule == "never" else rule  # `never` holds for the first start only
        rules = itertools.chain([rule], itertools.repeat(again))
        supervise_training(job, lambda: prepare_resume(job.folder, job.identity, next(rules)), others)


def delete_recorded_run_folder(artifacts: Artifacts) -> None:
    """Delete the folder of a finished run that dvc.lock records, except for what a longer run goes on from."""
    if artifacts.checkpoints.exists() and is_training_recorded(artifacts):
        keep_finished_run(artifacts, artifacts.checkpoints / read_report(artifacts, TrainingReport).run)


def _is_finished(job: Job) -> bool:
    """Whether the run's folder holds a whole finished run, which an earlier start could not hand over to DVC."""
    if job.training.resume != "auto" or not (job.folder / sealed.FINISHED).exists():
        return False
    last = sealed.find_newest_setting_broken_aside(job.folder, sealed.identity_to_json(job.identity))
    best = sealed.find_best_weights(job.folder, job.direction)
    is_whole = last is not None and best is not None and sealed.ResumePosition.load(last).finished
    if is_whole:
        logger.info("train: run %s has finished before: its results are restored from %s", job.folder.name, job.folder)
    return is_whole


def _best_arm(arms: Sequence[Job]) -> tuple[Job, sealed.BestWeights, dict[Any, float]]:
    """Return the arm with the best weights, the first of equal ones, and if there are several, what each of them has reached."""
    direction = arms[0].direction
    found = [(job, best) for job in arms if (best := sealed.find_best_weights(job.folder, direction))]
    if not found:
        raise ModelError("train", "no evaluation gave a finite value", "lower training.learning_rate")
    choose = min if direction == "min" else max
    values = {"champion" if job.start else "base": best.value for job, best in found}
    for name, value in values.items() if len(arms) > 1 else ():
        logger.info("train: from the %s: %s %.4g", name, arms[0].training.best_metric, value)
    return (*choose(found, key=lambda pair: pair[1].value), values if len(arms) > 1 else {})


def _collect(artifacts: Artifacts, arms: Sequence[Job], commit: str | None) -> TrainingReport:
    from trainer.reporting import metrics_log

    import_network_code()
    job, best, values = _best_arm(arms)
    folder, method = job.folder, objectives.build_objective(job.objective)
    finished = json.loads((folder / sealed.FINISHED).read_text(encoding="utf-8"))
    history = metrics_log.without_timing_metrics(finished["history"])
    losses = [entry["loss"] for entry in history if "loss" in entry]
    parameters: int = finished["parameters"]
    with replace_folder_atomically(artifacts.model) as target:
        if job.model.lora:
            parameters = _write_merged_and_adapter(job, method, best.folder, target, target / artifacts.adapter.name)
        else:
            not_weights = shutil.ignore_patterns(sealed.MANIFEST, sealed.BEST_NOTE, sealed.IDENTITY)
            shutil.copytree(best.folder, target, dirs_exist_ok=True, ignore=not_weights)
        complete_model_folder(target, artifacts, job.model, method.release_format)
        record_learned_rows(target, artifacts, job.model, method)
        check_same_metrics(target, job, _evaluation_of_step(history, best.step))
    report = TrainingReport(
        run=job.folder.name,
        steps=finished["step"],
        parameters=parameters,
        best_step=best.step,
        best_metric=best.metric,
        best_value=best.value,
        final_train_loss=losses[-1] if losses else None,
        git_commit=commit,
        versions=training_library_versions() | package_versions(job.identity),
        started_from=read_pinned_start(artifacts, job.model.start),
        base_commit=find_base_commit(job.model),
        arms=values,
    )
    with replace_folder_atomically(artifacts.checkpoint) as target:
        shutil.copytree(sealed.list_checkpoints(folder)[0], target, dirs_exist_ok=True)
    with replace_folder_atomically(artifacts.history) as target:
        (target / metrics_log.FILE).write_text(metrics_log.format_json_lines(history), encoding="utf-8")
        _write_curve(target / "train.csv", (e for e in history if "loss" in e))
        _write_curve(target / "validation.csv", filter(_has_evaluation, history))
        save_report(report, target / artifacts.report("train").name)
    return report


def _write_merged_and_adapter(job: Job, method: Objective[Any], best: Path, target: Path, adapter: Path) -> int:
    """Write the best weights with their adapters merged, and these beside them; return the number of parameters."""
    initial, of_start = resolve_start(job.start, job.model)
    parameters = network.write_merged_and_adapter(
        best,
        target,
        adapter,
        initial,
        objective=method,
        tokenizer=tokens.read_tokenizer(job.tokens),
        seed=job.seed,
        state=tokens.read_objective_state(job.tokens),
    )
    if job.start and not of_start:  # their base model is in a folder of this project
        shutil.rmtree(adapter, ignore_errors=True)
    return parameters


def _evaluation_of_step(history: Sequence[dict[str, Any]], step: int) -> dict[str, Any]:
    return next(one for one in reversed(history) if one.get("step") == step and _has_evaluation(one))


def _has_evaluation(entry: dict[str, Any]) -> bool:
    """Whether an entry of the Trainer's log has the metrics of an evaluation."""
    return any(name.startswith("eval_") for name in entry)


def _write_curve(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    rows = [{k.removeprefix("eval_"): v for k, v in entry.items() if k != "epoch"} for entry in entries]
    names = sorted({name for row in rows for name in row} - {"step"})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["step", *names])
        writer.writeheader()
        writer.writerows(rows)

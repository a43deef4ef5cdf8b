"""Bring one stage up to date through DVC, in a process that ends with the flow.

A stage that takes ten times as long as the longest of its past runs is ended. It reports progress and gets nowhere, such as a source
whose last page never comes; one that makes no progress is ended earlier, by tasks.stage_run.
"""

from __future__ import annotations

import logging
import math
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from flows import child_process
from flows.dvc_project import stage as dvc_stage
from flows.dvc_project.locks import hold_recipe_lock
from flows.run import unwatched_sources
from params import EvergreenError, InputsChangedError, ModelError, StaleBlessingError, StalledError, TransientError
from params.dvc_files import read_dvc_lock_stages, read_recipes_yaml_item
from params.foundation.artifacts import Artifacts
from tasks.history.run_log import RunEntry, read_runs
from tasks.ingestion.report import IngestReport
from tasks.recipes.loading import load
from tasks.release_log.receipt import Receipt
from tasks.report.formatting import format_duration
from tasks.stage_inputs import StageInputsSnapshot
from tasks.stage_run import idle_limit_s
from tasks.stages import read_report
from trainer.reporting import signs_of_life

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun

StageOutcome: TypeAlias = Literal["ran", "restored", "unchanged"]
"""Its command ran, DVC restored the outputs of the same work from its cache, or there was nothing to do."""

logger = logging.getLogger(__name__)
_RUNS: Final = 10  # how many of the last runs count for the time limit of a stage
_INTERRUPTED: Final = {"failed", "cancelled", "crashed"}
_END_S = 10.0
"""What a stopped training needs beyond `launch.grace_s`: to end its processes, and to report where it resumes."""


def should_retry_stage(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    """Whether Prefect should retry a stage: not for bad data, for example, and not if an earlier stage must run first."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, TransientError) and not isinstance(error, StaleBlessingError | InputsChangedError)


def any_stale(stages: Sequence[str], recipe: str) -> bool:
    """Whether DVC would run one of `stages`, or has not seen the recipe yet."""
    return dvc_stage.is_any_stage_stale(*(f"{stage}@{recipe}" for stage in ("resolve", *stages)))


def outcomes_if_all_unchanged(stages: Sequence[str], artifacts: Artifacts) -> dict[str, StageOutcome]:
    """Return the outcomes of a flow that would run none of `stages`; empty if it would, or if only it can tell."""
    if any(artifacts.unfinished_runs.glob("*.json")):  # the last run was killed, which the flow logs
        return {}
    try:
        with hold_recipe_lock(artifacts, logger):
            stale = (
                unwatched_sources.update_imports_and_check_ingest(artifacts, logger)
                or any_stale(stages, artifacts.recipe)
                or any(_outdated_on_hub(stage, artifacts, logger) for stage in stages)
            )
    except EvergreenError:  # the flow fails for the same reason, and Prefect records it
        return {}
    return {} if stale else dict.fromkeys(stages, "unchanged")


def fetch_inputs_and_check_recipe(recipe: str, log: child_process.Logger) -> None:
    """Find what is wrong with a recipe before any stage starts."""
    artifacts = Artifacts(recipe)
    signs_of_life.note("check: starts")
    unwatched_sources.fetch_missing_source_files(artifacts, log)
    item = read_recipes_yaml_item(artifacts)
    for model in (Path(item[key]) for key in ("base", "code") if key in item):
        if not model.exists():
            dvc_stage.restore_inputs(f"train@{recipe}", model)
    child_process.run_python_module("tasks", ["check", recipe], artifacts, log, name="check")


def _resolve(artifacts: Artifacts, log: child_process.Logger) -> None:
    """Write the recipe with all of its values, if that is stale."""
    name = f"resolve@{artifacts.recipe}"
    if dvc_stage.is_any_stage_stale(name):
        child_process.run_python_module("flows.dvc_project.stage", [name], artifacts, log, name=name)


def bring_up_to_date(stage: str, recipe: str, log: child_process.Logger, *, force: bool = False) -> StageOutcome:
    """Bring `stage` up to date; with `force`, run it whether it is stale or not. The first stage resolves the recipe before."""
    name, artifacts = f"{stage}@{recipe}", Artifacts(recipe)
    signs_of_life.note(f"{name}: looks for what has changed")
    if stage == "ingest":
        _resolve(artifacts, log)
        force = unwatched_sources.update_imports_and_check_ingest(artifacts, log, force=force)
    if not force and not dvc_stage.is_any_stage_stale(name):
        outdated = _outdated_on_hub(stage, artifacts, log)
        if outdated is None:
            if stage == "train":
                unwatched_sources.keep_rows_until_trained(stage, artifacts, None)
            log.info("%s: nothing has changed", name)
            return "unchanged"
        log.warning("%s: %s", name, outdated)
        force = True
    arguments = [name, *(["--force"] if force else [])]
    changed = what_changed(stage, artifacts)
    grace_s, limit = _grace_s(stage, artifacts), time_limit_from_past_runs(stage, artifacts, changed)
    limit_s = limit.seconds if limit else math.inf
    if changed:
        log.info("%s: changed since its last run: %s", name, ", ".join(changed))
    signs_of_life.note(f"{name}: starts")
    try:
        has_run = child_process.run_python_module(
            "flows.dvc_project.stage", arguments, artifacts, log, name=name, grace_s=grace_s, limit_s=limit_s
        )
    except subprocess.TimeoutExpired:
        assert limit
        raise limit.error(name) from None
    except EvergreenError as error:
        unwatched_sources.keep_rows_until_trained(stage, artifacts, error)
        raise
    unwatched_sources.keep_rows_until_trained(stage, artifacts, None)
    if not has_run:
        log.info("%s: restored, DVC has what the same work made before", name)
    return "ran" if has_run else "restored"


def record_pull_request_decision(artifacts: Artifacts) -> None:
    """If the pull request of a recipe's last release was merged or closed, run the publish stage, which records it.

    A decision that cannot be recorded now, because the recipe was edited for example, is logged; the next run records it.
    """
    if not has_unrecorded_decision(artifacts):
        return
    try:
        with hold_recipe_lock(artifacts, logger):
            if not any_stale(["publish"], artifacts.recipe):
                bring_up_to_date("publish", artifacts.recipe, logger, force=True)
    except EvergreenError as error:
        logger.warning("%s: the next run records what became of its pull request: %s", artifacts.recipe, error)


def has_unrecorded_decision(artifacts: Artifacts) -> bool:
    """Whether the pull request of the recipe's last release was merged or closed, which its receipt does not say yet."""
    if not artifacts.receipt.exists() or read_report(artifacts, Receipt).status != "proposed":
        return False
    return _outdated_on_hub("publish", artifacts, logger) is not None


def _grace_s(stage: str, artifacts: Artifacts) -> float:
    """How long a stage may take to stop: a training as long as it needs to write a checkpoint, to upload it, and to end."""
    if stage != "train":
        return child_process.GRACE_S
    launch = load(artifacts.recipe_path).launch
    upload_s = 0.0 if launch.mirror == "none" else launch.grace_s
    return max(child_process.GRACE_S, launch.grace_s + upload_s + _END_S)


def _outdated_on_hub(stage: str, artifacts: Artifacts, log: child_process.Logger) -> str | None:
    """What has changed on the Hub, which DVC cannot watch, since `stage` ran; None if nothing has, or it does not answer."""
    if stage not in ("validate", "evaluate", "publish"):
        return None
    from tasks.publishing import hub_changes

    try:
        recipe = load(artifacts.recipe_path)
        if stage == "validate":
            return hub_changes.why_start_is_outdated(artifacts, recipe.publish, recipe.model.start)
        if stage == "evaluate":
            return hub_changes.why_blessing_is_outdated(artifacts, recipe.publish)
        return hub_changes.why_receipt_is_outdated(artifacts, recipe.publish)
    except EvergreenError as error:
        log.warning("%s@%s: could not ask the Hub: %s", stage, artifacts.recipe, error)
        return None


class StageTimeLimit(NamedTuple):
    """How long one start of a stage may take, and where the limit comes from, for people."""

    seconds: float
    origin: str

    def error(self, name: str) -> StalledError:
        """Return the error of the stage `name` that was ended after this time."""
        what = f"was ended because it took longer than {format_duration(self.seconds)}: {self.origin}"
        fix = "see in its log above what it did; if it only has more to do, raise launch.max_slowdown or set it to null"
        return StalledError(name, what, fix)


def time_limit_from_past_runs(stage: str, artifacts: Artifacts, changed: Sequence[str] | None) -> StageTimeLimit | None:
    """Return the time limit of a stage; None if there is none.

    There is none if the stage's part of the recipe or its code has `changed` since its last run: then past runs say nothing.
    """
    if changed != []:
        return None
    recipe = load(artifacts.recipe_path)
    factor, past = recipe.launch.max_slowdown, list(_whole_runs(stage, read_runs(artifacts)))[-_RUNS:]
    if factor is None or not past:
        return None
    rows, least_s = _rows(stage, artifacts), idle_limit_s(stage, recipe)
    longest_s = max(seconds * max(1.0, rows / then if rows and then else 1.0) for seconds, then in past)
    origin = f"{factor:g} times the longest of its last {len(past)} run(s), {format_duration(longest_s)}"
    if longest_s > max(seconds for seconds, _ in past):
        origin += ", scaled up to the rows of today"
    origin += f" (launch.max_slowdown), but not less than the {format_duration(least_s)} that it may make no progress"
    return StageTimeLimit(max(factor * longest_s, least_s), origin)


def what_changed(stage: str, artifacts: Artifacts) -> list[str] | None:
    """Return which keys of the recipe and which code of a stage have changed since it ran, says dvc.lock; None if it never ran."""
    inputs = StageInputsSnapshot.read(stage, artifacts)
    recorded = read_dvc_lock_stages(artifacts.root).get(inputs.name)
    return inputs.recorded_changes(recorded) if recorded else None


def _whole_runs(stage: str, runs: Sequence[RunEntry]) -> Iterator[tuple[float, int]]:
    """Yield seconds and rows of each run that did all of the stage's work, and did not finish that of an interrupted run.

    Only a training goes on when it is started again; of the other stages, the last start did all the work.
    """
    follows_interrupted = False
    for run in runs:
        if done := run.stages.get(stage):
            if done.outcome == "ran" and not follows_interrupted:
                seconds = done.seconds if stage == "train" or done.last_start_s is None else done.last_start_s
                yield seconds, sum(run.rows.values())
            follows_interrupted = done.outcome in _INTERRUPTED


def _rows(stage: str, artifacts: Artifacts) -> int | None:
    try:
        return None if stage == "ingest" else sum(read_report(artifacts, IngestReport).rows.values())
    except ModelError:  # its output is elsewhere, so the rows are those of an earlier run
        return None

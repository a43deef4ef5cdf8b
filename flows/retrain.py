"""The flow: six stages from data to a published model, each run only if something that it reads has changed.

make run                                              the default recipe
evergreen run banking77 --no-publish                  another one, up to its evaluation
prefect deployment run retrain/default --watch        by a worker, see prefect.yaml
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import TerminationSignal
from prefect.runtime import deployment, task_run

from flows.child_process import Logger, fork_modules
from flows.dvc_project.locks import hold_recipe_lock, remove_dead_lock_owners
from flows.record.outside_clone import keep_outside_of_clone
from flows.record.recording import (
    RecordTarget,
    UnrecordedRunError,
    ensure_recordable_before_publish,
    record_run_after_block,
)
from flows.run import history, logs, pauses, stages
from flows.run.final_state import final_state, gate_refused_state, unrecorded_state
from flows.run.lost_runs import log_runs_without_entry
from flows.run.other_runs import refuse_to_overtake
from flows.run.prefect_artifacts import add_run_page_link, add_stage_report_artifact
from flows.run.report_copies import with_report
from flows.run.stops import state_after_signal
from flows.run.untold_releases import tell_untold_releases
from flows.server import clock
from params import EvergreenError, GateRefusedError, InputsChangedError, RecipeError, StaleBlessingError
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.recipes.loading import load, recipe_name

clock.send_heartbeats_with_server_time()  # the first one comes before the flow's first line


# DVC alone decides what is stale, so Prefect's caching and result persistence stay off.
@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=3,
    retry_delay_seconds=[5, 30, 120],
    retry_condition_fn=stages.should_retry_stage,
)
def bring_stage_up_to_date(stage: str, recipe: str, *, force: bool) -> Any:
    """Bring one stage up to date, and show its report in Prefect's UI."""
    if task_run.run_count > 1:
        pauses.wait_while_paused(get_run_logger())
    remove_dead_lock_owners(get_run_logger())
    outcome = stages.bring_up_to_date(stage, recipe, get_run_logger(), force=force)
    add_stage_report_artifact(stage, Artifacts(recipe), outcome)
    return outcome


def wait_until_stage_may_start(
    stage: str, artifacts: Artifacts, record: RecordTarget | None, outcomes: Mapping[str, str], log: Logger
) -> None:
    """Return when a stage may start; an error if a person has stopped the run, or its release could not be recorded."""
    pauses.wait_while_paused(log)
    if stage == "publish" and record:
        ensure_recordable_before_publish(artifacts, record, outcomes, log)
        pauses.wait_while_paused(log)  # a remote may have kept it waiting for long


def name_of_recipe_to_run(recipe: str) -> str:
    """Return the name of a recipe; where a deployment asks for one that was removed, the error says that the deployment is left.

    Raises:
        RecipeError: there is no such recipe.
    """
    try:
        return recipe_name(recipe)
    except RecipeError as error:
        if not deployment.name or Artifacts(history.recipe_of_parameters({"recipe": recipe})).recipe_path.exists():
            raise
        name = f"{deployment.flow_name}/{deployment.name}"
        fix = f"delete it, if the recipe was removed: `prefect deployment delete {name}`, and its item in prefect.yaml; or bring the recipe back"
        what = f"there is no such recipe any more, and the deployment {name} still runs it"
        raise error.replace(what=what, fix=fix) from error


@flow(name="retrain", flow_run_name="retrain-{recipe}", persist_result=False)
def retrain(
    recipe: str = "default", *, publish: bool = True, force: bool = False, record: RecordTarget | None = None
) -> Any:
    """Bring the stages of one recipe up to date, and publish the model.

    Args:
        recipe: name or path of a recipe in params/.
        publish: whether to go on to the Hub after the evaluation.
        force: run every stage, stale or not.
        record: the branch of a git remote that gets a commit with the record of the run, however it ends.
    """
    logs.shorten_logs_of_runs()
    artifacts, log = Artifacts(name_of_recipe_to_run(recipe)), get_run_logger()
    clock.warn_of_clock_difference(log)
    requested = STAGES if publish else STAGES[:-1]
    outcomes: dict[str, str] = {}

    def run_stages(names: Sequence[str], *, force: bool) -> None:
        for stage in names:
            wait_until_stage_may_start(stage, artifacts, record, outcomes, log)
            named: Any = bring_stage_up_to_date.with_options(name=stage, task_run_name=f"{stage}@{artifacts.recipe}")
            with run.stage(stage, outcomes):
                outcomes[stage] = named(stage, artifacts.recipe, force=force, return_state=True).result()

    shown: list[str] = []
    with keep_outside_of_clone(artifacts, record):
        try:
            with (
                hold_recipe_lock(artifacts, log),
                record_run_after_block(artifacts, record, outcomes, log) as shown,
                history.log_run_in_block(artifacts) as run,
                contextlib.ExitStack() as opened,
            ):
                load(artifacts.recipe_path)
                refuse_to_overtake(artifacts.recipe)
                if record:
                    log_runs_without_entry(artifacts, log)
                if force or stages.any_stale(requested, artifacts.recipe):
                    opened.enter_context(fork_modules())
                    stages.fetch_inputs_and_check_recipe(artifacts.recipe, log)
                try:
                    run_stages(requested, force=force)
                except StaleBlessingError as error:  # another model was published meanwhile: compare with that one
                    log.warning("%s", error)
                    run_stages(("evaluate", "publish"), force=True)
                except InputsChangedError as error:  # edited while a stage ran: start again with what there is now
                    log.warning("%s", error)
                    run_stages(requested, force=force)
                finally:
                    add_run_page_link(artifacts, renew=not publish)
                    tell_untold_releases(artifacts, run.started, outcomes, log)
        except GateRefusedError as error:
            return gate_refused_state(artifacts, error, shown)
        except UnrecordedRunError as error:
            return unrecorded_state(artifacts, outcomes, error.reason, error.cause)
        except EvergreenError as error:
            raise with_report(error, artifacts, shown) from error
        except (KeyboardInterrupt, TerminationSignal) as stop:
            return state_after_signal(stop)
        return final_state(artifacts, outcomes, shown)

"""Keep a model fresh: six stages from data to a published model, each run only if something that it reads has changed.

make run                                              the default recipe
evergreen run banking77 --no-publish                  another one, up to its evaluation
prefect deployment run retrain/default --watch        by a worker, see prefect.yaml
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import Task, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

from flows import logs, stages
from flows.artifacts import kept, link_report, show
from flows.locks import clear_stale_locks, recipe_lock
from params import StaleBlessingError, TransientError, load
from params.artifacts import STAGES, Artifacts
from params.loading import recipe_name

KEPT = "Kept the champion"
"""The state in which a run ends whose model did not take the place of the published one: as good an end as any."""


def is_transient(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    """Retry what a retry can cure: never bad data, a bad recipe or a refused model."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, TransientError) and not isinstance(error, StaleBlessingError)


# DVC alone decides what is stale, so Prefect's caching and result persistence stay off.
@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=3,
    retry_delay_seconds=[5, 30, 120],
    retry_condition_fn=is_transient,
)
def run_stage(stage: str, recipe: str, *, force: bool) -> stages.Outcome | State[stages.Outcome]:
    """Bring one stage up to date, and show its report."""
    clear_stale_locks(get_run_logger())
    outcome = stages.run(stage, recipe, get_run_logger(), force=force)
    show(stage, Artifacts(recipe), outcome)
    if stage == "publish" and (why := kept(Artifacts(recipe))):
        return Completed(name=KEPT, message=why, data=outcome)
    return outcome


@flow(name="retrain", flow_run_name="retrain-{recipe}", persist_result=False)
def retrain(
    recipe: str = "default", *, publish: bool = True, force: bool = False
) -> dict[str, str] | State[dict[str, str]]:
    """Retrain what is stale of one recipe, and publish the model.

    Args:
        recipe: name or path of a recipe in params/.
        publish: whether to go on to the Hub after the evaluation.
        force: run every stage, stale or not.
    """
    logs.install()
    recipe = recipe_name(recipe)
    load(stages.recipe_path(recipe))
    wanted = STAGES if publish else STAGES[:-1]
    outcomes: dict[str, str] = {}

    def step(stage: str, *, force: bool = force) -> None:
        named: Any = run_stage.with_options(name=stage, task_run_name=f"{stage}@{recipe}")
        ended = named(stage, recipe, force=force)
        outcomes[stage] = ended.result() if isinstance(ended, State) else ended

    with recipe_lock(Artifacts(recipe)):
        clear_stale_locks(get_run_logger())
        if force or any(stages.changed(stage, recipe) for stage in wanted):
            stages.check(recipe, get_run_logger())
        try:
            for stage in wanted:
                step(stage)
        except StaleBlessingError as error:  # another model was published meanwhile: that one is to be beaten now
            get_run_logger().warning("%s", error)
            for stage in STAGES[-2:]:
                step(stage, force=True)
        finally:
            link_report(Artifacts(recipe), renew=not publish)
    why = kept(Artifacts(recipe)) if publish else None
    return Completed(name=KEPT, message=why, data=outcomes) if why else outcomes


if __name__ == "__main__":
    from flows.cli import main

    sys.exit(main(["run", *sys.argv[1:]]))

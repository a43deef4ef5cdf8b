"""Keep a model fresh: six stages from data to a published model, each run only if something that it reads has changed.

make run                                              the default recipe
python -m flows.retrain banking77 --no-publish        another one, up to its evaluation
prefect deployment run retrain/default --watch        by a worker, see docs/architecture.md
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from prefect import Task, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

from flows import logs, stages
from flows.artifacts import kept, link_report, show, summary
from flows.locks import clear_stale_locks, recipe_lock
from flows.server import ensure_server
from params import EvergreenError, StaleBlessingError, TransientError, load
from params.artifacts import STAGES, Artifacts

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
        recipe: name of a file in params/, without its suffix.
        publish: whether to go on to the Hub after the evaluation.
        force: run every stage, stale or not.
    """
    logs.install()
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


def main() -> int:
    """Run the flow from a shell, with a Prefect server of its own if none is configured; then say what there is now."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.retrain", description="Retrain what is stale, and publish it."
    )
    parser.add_argument("recipe", nargs="?", default="default", help="name of a file in params/, without its suffix")
    parser.add_argument("--force", action="store_true", help="run every stage, stale or not")
    parser.add_argument("--no-publish", dest="publish", action="store_false", help="stop after the evaluation")
    arguments = parser.parse_args()
    artifacts = Artifacts(arguments.recipe)
    try:
        with ensure_server(artifacts.scratch / "prefect-server.log"):
            outcomes = retrain(**vars(arguments))
    except EvergreenError as error:
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    print(summary(artifacts, outcomes))
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())

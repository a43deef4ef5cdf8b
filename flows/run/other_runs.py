"""Other runs of the project, as Prefect's server knows them. No run overtakes one that lives.

The server may have marked a healthy run as crashed, as after it was away for long. On one machine, the recipe's lock decides. On
another one, heartbeats do: a process that sends them after its run was marked as crashed still works.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter, EventResourceFilter
from prefect.runtime import deployment

from flows.run import final_state
from flows.run.history import read_prefect_yaml_names, recipe_of_parameters
from flows.server.clock import HEARTBEAT, server_time
from flows.server.configured import read_pages
from params import TransientError

_LOOKED_AT: Final = timedelta(days=1)
_SILENT_FOR: Final = timedelta(minutes=3)
"""Heartbeats come every minute."""
_AT_ITS_END: Final = timedelta(seconds=30)
"""A heartbeat may still be on its way when a process reports that it has crashed."""


def read_ended_runs(
    recipe: str, client: SyncPrefectClient, ends: Collection[StateType], since: datetime
) -> Iterator[FlowRun]:
    """Yield the runs of `recipe`, in any deployment of this project, that ended so, but those that did nothing; the oldest first.

    Those of a deployment that was deleted count, too, unless another project on this server has a recipe of this name.

    Raises:
        httpx.HTTPError: the server does not answer.
    """
    own = client.read_deployment(UUID(deployment.id))
    of_flow = filters.FlowFilter(id=filters.FlowFilterId(any_=[own.flow_id]))
    deployments = list(read_pages(partial(client.read_deployments, flow_filter=of_flow)))
    of_others = _deployments_of_other_projects(deployments, own)
    other_ids = {one.id for one in of_others}
    own_ids = {one.id for one in deployments} - other_ids
    # Whose a deployment was that is gone, as after it was renamed, cannot be told from another project's.
    is_name_of_others = any(recipe_of_parameters(one.parameters or {}) == recipe for one in of_others)
    wanted = filters.FlowRunFilter(
        state=filters.FlowRunFilterState(
            type=filters.FlowRunFilterStateType(any_=list(ends)),
            name=filters.FlowRunFilterStateName(not_any_=[final_state.NOTHING_NEW]),  # most, of a frequent schedule
        ),
        end_time=filters.FlowRunFilterEndTime(after_=since),
    )
    read = partial(client.read_flow_runs, flow_filter=of_flow, flow_run_filter=wanted, sort=FlowRunSort.START_TIME_ASC)
    for run in read_pages(read):
        if (
            run.deployment_id is None
            or run.deployment_id in other_ids
            or recipe_of_parameters(run.parameters) != recipe
        ):
            continue
        if not is_name_of_others or run.deployment_id in own_ids:
            yield run


def _deployments_of_other_projects(
    deployments: Iterable[DeploymentResponse], own: DeploymentResponse
) -> list[DeploymentResponse]:
    """Return the deployments from another place than `own` whose names prefect.yaml does not have."""
    names = read_prefect_yaml_names(Path())

    def place(one: DeploymentResponse) -> tuple[Any, ...]:
        return one.path, one.entrypoint, one.pull_steps

    return [one for one in deployments if place(one) != place(own) and one.name not in names]


def refuse_to_overtake(recipe: str) -> None:
    """Check that no run of `recipe` that the server has marked as crashed is still alive, in any deployment of this project.

    Raises:
        TransientError: there is one.
    """
    if not deployment.id:
        return
    now = server_time()
    try:
        with get_client(sync_client=True) as client:
            for run in read_ended_runs(recipe, client, [StateType.CRASHED], now - _LOOKED_AT):
                beats = EventFilter(
                    event=EventNameFilter(name=[HEARTBEAT]),
                    resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
                    occurred=EventOccurredFilter(since=now - _SILENT_FOR, until=now + _SILENT_FOR),
                )
                times = [event.occurred for event in client.read_events(beats, limit=1).events]
                if run.state and any(time > run.state.timestamp + _AT_ITS_END for time in times):
                    what = f"the server has marked the run {run.name} ({run.id}) as crashed, but its process still sends heartbeats"
                    fix = "wait until it has ended, or end its process; then start this run again"
                    raise TransientError("Prefect's server", what, fix)
    except httpx.HTTPError:
        return  # what the run asks next says what is wrong

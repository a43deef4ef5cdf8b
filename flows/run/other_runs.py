"""No run overtakes one that lives: Prefect's server may have marked a healthy run as crashed, as after it was away for long.

On one machine, the recipe's lock decides. On another one, heartbeats do: a process that sends them after its run was marked as crashed
still works.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter, EventResourceFilter
from prefect.runtime import deployment

from flows.run.history import recipe_of_parameters
from flows.server.clock import HEARTBEAT, server_time
from params import TransientError

_LOOKED_AT: Final = timedelta(days=1)
_SILENT_FOR: Final = timedelta(minutes=3)
"""Heartbeats come every minute."""
_AT_ITS_END: Final = timedelta(seconds=30)
"""A heartbeat may still be on its way when a process reports that it has crashed."""


def refuse_to_overtake(recipe: str) -> None:
    """Check that no run of `recipe` that the server has marked as crashed is still alive, in any deployment of this project.

    Raises:
        TransientError: there is one.
    """
    own = deployment.id
    if not own:
        return
    now = server_time()
    crashed = filters.FlowRunFilterStateType(any_=[StateType.CRASHED])
    try:
        with get_client(sync_client=True) as client:
            wanted = filters.FlowRunFilter(
                deployment_id=filters.FlowRunFilterDeploymentId(any_=deployments_like(UUID(own), client)),
                state=filters.FlowRunFilterState(type=crashed),
                end_time=filters.FlowRunFilterEndTime(after_=now - _LOOKED_AT),
            )
            for run in client.read_flow_runs(flow_run_filter=wanted):
                if recipe_of_parameters(run.parameters) != recipe:
                    continue
                beats = EventFilter(
                    event=EventNameFilter(name=[HEARTBEAT]),
                    resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
                    occurred=EventOccurredFilter(since=now - _SILENT_FOR, until=now + _SILENT_FOR),
                )
                times = [event.occurred for event in client.read_events(beats, limit=1).events]
                _refuse_if_alive(run, times)
    except httpx.HTTPError:
        return  # what the run asks next says what is wrong


def deployments_like(own: UUID, client: SyncPrefectClient) -> list[UUID]:
    """Return the deployments whose runs work in the same place as those of one: one server may serve several projects."""
    this = client.read_deployment(own)
    of_flow = filters.FlowFilter(id=filters.FlowFilterId(any_=[this.flow_id]))
    place = this.path, this.entrypoint, this.pull_steps
    found = client.read_deployments(flow_filter=of_flow)
    return [own, *(one.id for one in found if (one.path, one.entrypoint, one.pull_steps) == place)]


def _refuse_if_alive(run: FlowRun, heartbeats: Sequence[datetime]) -> None:
    if run.state and any(time > run.state.timestamp + _AT_ITS_END for time in heartbeats):
        what = f"the server has marked the run {run.name} ({run.id}) as crashed, but its process still sends heartbeats"
        fix = "wait until it has ended, or end its process; then start this run again"
        raise TransientError("Prefect's server", what, fix)

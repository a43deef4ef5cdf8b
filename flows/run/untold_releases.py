"""Releases whose own run could not say so, because it was lost or failed afterwards: the next run has the server tell people.

A run that ends as it should tells of its release by the name of its state. Any other line `published` of the log gets an event of its own.
Each later run sends it again, and the automation that `evergreen watch` makes acts once for each release: so no kill in between loses a
message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun
from prefect.events import Event, RelatedResource
from prefect.runtime import flow_run

from flows.child_process import Logger
from flows.run import final_state
from flows.server.configured import read_pages
from params.foundation.artifacts import Artifacts
from tasks.history.run_log import read_runs
from tasks.hub_client import connection
from tasks.release_log.events import ReleaseEvent, read_release_events
from tasks.release_log.receipt import Receipt
from tasks.stages import read_report

EVENT: Final = "evergreen.release.published"
RESOURCES: Final = "evergreen.release"
"""How the ids of the events' resources begin; the commit of the release follows."""
LOOKED_AT: Final = timedelta(days=90)
_TELLING: Final = {final_state.PUBLISHED, final_state.NOT_RECORDED}
"""The states of a run whose message names its release."""


def tell_untold_releases(artifacts: Artifacts, started: datetime, outcomes: Mapping[str, str], log: Logger) -> None:
    """Send an event for each release in the recipe's log of which no run has told, and that was out when this run `started`.

    What was released later is of a run that may still tell of it, as this one does of its own.
    """
    since = datetime.now(UTC) - LOOKED_AT
    recent = [one for one in read_release_events(artifacts) if _was_released_between(one, since, started)]
    if not recent:
        return
    try:
        with get_client(sync_client=True) as client:
            told = _told_by_runs(artifacts, {one.commit for one in recent}, client)
            told.add(_own_release(artifacts, outcomes))
            untold = [release for release in recent if release.commit not in told]
            if untold:
                run = client.read_flow_run(UUID(flow_run.id))
                events = [_event(release, artifacts, run) for release in untold]
                client.request("POST", "/events", json=[one.model_dump(mode="json") for one in events])
    except httpx.HTTPError as error:
        log.warning("people get no message of the releases of lost runs; the next run tries again: %s", error)


def _was_released_between(event: ReleaseEvent, since: datetime, until: datetime) -> bool:
    if event.event != "published" or not event.commit or not event.time:
        return False
    return since < datetime.fromisoformat(event.time) < until


def _own_release(artifacts: Artifacts, outcomes: Mapping[str, str]) -> str | None:
    """Return the commit of the release that this run will tell of."""
    if outcomes.get("publish") != "ran":
        return None
    receipt = read_report(artifacts, Receipt)
    return receipt.commit if receipt.status == "published" else None


def _told_by_runs(artifacts: Artifacts, commits: Collection[str | None], client: SyncPrefectClient) -> set[str | None]:
    """Return of which of these releases an earlier run has told.

    Raises:
        httpx.HTTPError: the server does not answer.
    """
    published = [one for one in read_runs(artifacts) if one.outcome == "published" and one.commit in commits]
    silent = _ended_without_message(client, {one.run_id for one in published if one.run_id})
    return {one.commit for one in published if one.run_id not in silent}


def _ended_without_message(client: SyncPrefectClient, runs: Collection[str]) -> set[str]:
    """Return which runs have ended in a state whose message names no release; one that the server does not know is none of them."""
    if not runs:
        return set()
    wanted = filters.FlowRunFilter(id=filters.FlowRunFilterId(any_=[UUID(run) for run in runs]))
    found = read_pages(partial(client.read_flow_runs, flow_run_filter=wanted))
    ended = [one for one in found if one.state and one.state.type in TERMINAL_STATES]
    return {str(one.id) for one in ended if one.state and one.state.name not in _TELLING}


def _event(release: ReleaseEvent, artifacts: Artifacts, run: FlowRun) -> Event:
    """Return the event of a release; it names this run, to which messages link."""
    related = [
        {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.role": "flow-run"},
        {
            "prefect.resource.id": f"prefect.flow.{run.flow_id}",
            "prefect.resource.role": "flow",
            "prefect.resource.name": flow_run.flow_name or "",
        },
    ]
    return Event(
        event=EVENT,
        resource={"prefect.resource.id": f"{RESOURCES}.{release.commit}", "prefect.resource.name": artifacts.recipe},
        related=[RelatedResource.model_validate(one) for one in related],
        payload={"message": _message(release)},
    )


def _message(release: ReleaseEvent) -> str:
    is_local = release.endpoint == connection.LOCAL
    page = f"{release.endpoint}/{release.repo_id}/tree/{release.commit}"
    link = f"on {connection.name_of_hub(release.endpoint)}" if is_local else page
    told = f"the run that released it at {release.time} has not told of it"
    return "\n".join([*release.reasons, told, f"release: {release.repo_id} {release.tag} {link}"])

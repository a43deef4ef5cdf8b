"""Runs that ended and are in no log: their worker was lost, or could not record them. Prefect's server knows how they ended.

It knows all runs, whatever worker had them: one that failed to clone the project, too. The next recorded run of the deployment
logs them, with what the server says of each.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import deployment

from flows.child_process import Logger
from flows.run import final_state
from flows.run.history import recipe_of_parameters
from params import EvergreenError
from params.foundation.artifacts import Artifacts
from params.foundation.secrets import without_secrets
from tasks.history.run_log import Outcome, RunEntry, RunErrorRecord, append_run, read_runs
from tasks.history.run_record import cost_of_run
from tasks.report.run_results import read_recipe_or_none

_LOOKED_AT: Final = timedelta(days=90)
_AT_ONCE: Final = 200  # the most that the server answers with
_MAX_TEXT: Final = 2000
_BY_STATE: Final[dict[str, Outcome]] = {
    final_state.PUBLISHED: "published",
    final_state.KEPT: "kept",
    final_state.PROPOSED: "proposed",
    final_state.REJECTED: "rejected",
    final_state.REFUSED: "refused",
}
_BY_TYPE: Final[dict[StateType, Outcome]] = {
    StateType.FAILED: "failed",
    StateType.CRASHED: "crashed",
    StateType.CANCELLED: "cancelled",
}


def log_runs_without_entry(artifacts: Artifacts, log: Logger) -> None:
    """Log the runs of this recipe and deployment that have ended and left no entry; a run with nothing to do leaves none."""
    own = deployment.id
    if not own:
        return
    known = {entry.run_id for entry in read_runs(artifacts)}
    try:
        for run in _ended_runs(UUID(own)):
            is_unknown = str(run.id) not in known and recipe_of_parameters(run.parameters) == artifacts.recipe
            if is_unknown and (entry := _entry(artifacts, run)):
                log.warning("logs the run %s of %s, which left no entry: %s", run.name, entry.started, entry.outcome)
                append_run(artifacts, entry)
    except (httpx.HTTPError, EvergreenError) as error:
        log.warning("runs that left no entry in the log could not be looked for; the next run looks again: %s", error)


def _ended_runs(deployment_id: UUID) -> list[FlowRun]:
    wanted = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment_id]),
        state=filters.FlowRunFilterState(
            type=filters.FlowRunFilterStateType(any_=list(TERMINAL_STATES)),
            name=filters.FlowRunFilterStateName(not_any_=[final_state.NOTHING_NEW]),  # most, of a frequent schedule
        ),
        end_time=filters.FlowRunFilterEndTime(after_=datetime.now(UTC) - _LOOKED_AT),
    )
    found: list[FlowRun] = []
    with get_client(sync_client=True) as client:
        while page := client.read_flow_runs(
            flow_run_filter=wanted, sort=FlowRunSort.START_TIME_ASC, limit=_AT_ONCE, offset=len(found)
        ):
            found += page
    return found


def _entry(artifacts: Artifacts, run: FlowRun) -> RunEntry | None:
    """Return an entry with what the server knows of a run that has ended; None if it had nothing to do."""
    state, started = run.state, run.start_time or run.expected_start_time
    if state is None or started is None:
        return None
    name = state.name or ""
    if name == final_state.NOT_RECORDED:  # its message begins with the name that the state would have had
        name = (state.message or "").partition(",")[0]
    outcome = _BY_STATE.get(name) or (_BY_TYPE.get(state.type) if name == state.name else "evaluated")
    if outcome is None:
        return None
    text = without_secrets(state.message or "")[:_MAX_TEXT]
    has_error = outcome in {"failed", "crashed"}
    kind = re.search(r"\b(\w+Error)\b", text)
    error = RunErrorRecord(
        type=kind[1] if kind else "UnknownError",
        where="Prefect's server",
        what=text or "says no reason",
        fix="see the log of the run on the server's page; the next run continues",
    )
    entry = RunEntry(
        run_id=str(run.id),
        recipe=artifacts.recipe,
        started=started.replace(microsecond=0),
        ended=(run.end_time or started).replace(microsecond=0),
        outcome=outcome,
        reasons=() if has_error else tuple(text.splitlines()),
        error=error if has_error else None,
        is_from_server=True,
    )
    return entry.model_copy(update={"cost": cost_of_run(entry, read_recipe_or_none(artifacts))})

"""Stages start only in a flow run that runs: people pause, suspend, cancel and end runs on the server's page.

Prefect only notes a new state of a run that a person gives it; a flow goes on until it asks. A run that the server took for
crashed goes on, too: that happens to healthy ones while the server is away (docs/deployment.md).
"""

from __future__ import annotations

import time
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import Abort, Pause
from prefect.runtime import flow_run
from prefect.states import Cancelled

from flows.child_process import Logger
from params import TransientError

POLL_S = 10.0  # seconds between two questions whether a paused run may go on
_STOPPED = (StateType.CANCELLING, StateType.CANCELLED, StateType.FAILED, StateType.COMPLETED, StateType.SCHEDULED)
"""States that only a person, or the server for a person, gives to a run with a process."""


def wait_while_paused(log: Logger) -> None:
    """Return when the flow run of this process may go on. One that is paused waits; while the server is away, so does any.

    Raises:
        Abort: it was cancelled, or ended in another way.
        Pause: it was suspended: the process ends, and who resumes the run starts another one.
        TransientError: the server does not answer for longer than Prefect's client tries again.
    """
    if not flow_run.id:
        return
    try:
        with get_client(sync_client=True) as client:
            state, has_waited = _state_after_pause(client, log)
            if state and state.type == StateType.CANCELLING:  # a worker would have ended this process by now
                client.set_flow_run_state(flow_run.id, Cancelled(message="ended before its next stage"))
    except httpx.HTTPError as error:
        what = f"does not say whether the run is paused or cancelled: {error or type(error).__name__}"
        raise TransientError("Prefect's server", what, "start the run again when the server answers") from error
    if state and (state.type in _STOPPED or (has_waited and state.type != StateType.RUNNING)):
        raise Abort(f"the run is {state.name}: its next stage does not start; what has ended is kept")


def _state_after_pause(client: SyncPrefectClient, log: Logger) -> tuple[State[Any] | None, bool]:
    """Wait while the run is paused; return its state then, and whether it was."""
    has_waited = False
    while (state := client.read_flow_run(flow_run.id).state) and state.type == StateType.PAUSED:
        if state.state_details.pause_reschedule:
            raise Pause(f"the run was suspended ({state.name}): what has ended is kept", state=state)
        if not has_waited:
            log.warning("the run is paused: it waits until somebody resumes or cancels it")
        has_waited = True
        time.sleep(POLL_S)
    return state, has_waited

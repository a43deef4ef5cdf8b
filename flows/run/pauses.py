"""Stages start only in a flow run that runs: people pause, suspend, cancel and end runs on the server's page.

Prefect only notes a new state of a run that a person gives it; a flow goes on until it asks. A run that the server took for
crashed goes on, too: that happens to healthy ones while the server is away (docs/deployment.md).
"""

from __future__ import annotations

import time

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
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
    waiting = False
    try:
        with get_client(sync_client=True) as client:
            while (state := client.read_flow_run(flow_run.id).state) and state.type == StateType.PAUSED:
                if state.state_details.pause_reschedule:
                    raise Pause(f"the run was suspended ({state.name}): what has ended is kept", state=state)
                if not waiting:
                    log.warning("the run is paused: it waits until somebody resumes or cancels it")
                waiting = True
                time.sleep(POLL_S)
            if state and state.type == StateType.CANCELLING:  # a worker would have ended this process by now
                client.set_flow_run_state(flow_run.id, Cancelled(message="ended before its next stage"))
    except httpx.HTTPError as error:
        what = f"does not say whether the run is paused or cancelled: {error or type(error).__name__}"
        raise TransientError("Prefect's server", what, "start the run again when the server answers") from error
    if state and (state.type in _STOPPED or (waiting and state.type != StateType.RUNNING)):
        raise Abort(f"the run is {state.name}: its next stage does not start; what has ended is kept")

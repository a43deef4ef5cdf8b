"""How a run ends that does not end by itself: cancelled if a person asked for it, else crashed; our log and Prefect agree.

Prefect takes each signal for a crash. Where no worker started the flow, who sends Ctrl-C or SIGTERM wants to cancel it. A worker
that ends sends SIGTERM, too: its run has crashed, unless somebody has cancelled it on the server.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import Abort, CancelledRun, ObjectNotFound, Pause, PrefectException, TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed

from flows.server.configured import open_impatient_client
from params import PreemptedError

_GOES_ON = (StateType.PENDING, StateType.RUNNING)


def state_after_signal(stop: KeyboardInterrupt | TerminationSignal) -> State[Any]:
    """Return the state of a run that a signal ended; `turn_user_stop_into_error` makes an end of this process of it.

    Raises:
        KeyboardInterrupt, TerminationSignal: `stop`, if a worker started the run: Prefect then decides on its state.
    """
    if _has_worker():
        raise stop
    if isinstance(stop, KeyboardInterrupt):  # Prefect cannot hand it on: it would end its event loop
        return Cancelled(message=str(stop) or "was interrupted")
    return Cancelled(message="was stopped by SIGTERM; the next run goes on from there", data=stop)


def was_stopped_by_person(run_id: str) -> bool:
    """Whether a run that did not end by itself was stopped by a person: this one, or an earlier one that was killed.

    An earlier one that the server still takes for running becomes crashed there. If the server does not say, nobody stopped it.
    """
    is_this = run_id == flow_run.id
    if is_this and not _has_worker():
        return True
    try:
        with open_impatient_client() as client:
            state = client.read_flow_run(UUID(run_id)).state
            if state and state.type in _GOES_ON and not is_this:
                lost = "was killed: it left no end, and the next run of the recipe found that"
                client.set_flow_run_state(UUID(run_id), Crashed(message=lost), force=True)
    except (httpx.HTTPError, ObjectNotFound, PrefectException, ValueError):  # also a server of an earlier run's own
        return False
    return state is not None and state.type not in (*_GOES_ON, StateType.CRASHED)


def _has_worker() -> bool:
    return "PREFECT__FLOW_RUN_ID" in os.environ


@contextlib.contextmanager
def turn_user_stop_into_error() -> Iterator[None]:
    """Turn the end that a person has given to the flow run in the block into an error; SIGTERM ends this process."""
    try:
        yield
    except (Abort, Pause) as stop:
        raise PreemptedError("the flow run", str(stop), "run it again: it goes on from where it was") from None
    except CancelledRun as stop:
        raise KeyboardInterrupt(str(stop)) from None
    except TerminationSignal as stop:
        signal.signal(stop.signal, signal.SIG_DFL)
        os.kill(os.getpid(), stop.signal)
        raise

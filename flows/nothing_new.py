"""A run of the flow that finds nothing to do, on a configured server: a flow run as Prefect makes it, but without its stages.

Three requests say all there is to say. Prefect's engine would take longer to import than the whole run takes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from flows.final_state import name_and_message
from params import TransientError
from params.artifacts import Artifacts

_TIMEOUT_S = 10.0
_FLOW = Path(__file__).with_name("retrain.py")


def add_flow_run(artifacts: Artifacts, outcomes: Mapping[str, str], parameters: Mapping[str, Any]) -> bool:
    """Add a flow run that ended with `outcomes` to the server that PREFECT_API_URL names.

    Returns:
        False if there is no such variable, or the server does not take the run in this way, for example because it wants a
        password: then Prefect's own client has to make it.

    Raises:
        TransientError: the server stopped answering when it had the run, but not the state in which it ended.
    """
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return False
    name, message = name_and_message(artifacts, outcomes)
    ended = {"type": "COMPLETED", "name": name or "Completed", "message": message}
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as server:
        try:
            run = _create(server, f"retrain-{artifacts.recipe}", parameters)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError):  # the last two: it is no server of Prefect's
            return False
        try:
            _set_states(server, run, [{"type": "RUNNING", "name": "Running"}, ended])
        except httpx.HTTPError as error:
            what = f"did not take the state of flow run {run}: {error}"
            raise TransientError("Prefect's server", what, "run it again when the server answers") from error
    return True


def _create(server: httpx.Client, name: str, parameters: Mapping[str, Any]) -> str:
    """Create a pending flow run, with the same version as Prefect's client gives it: the hash of the flow's file."""
    flow = _post(server, "flows/", {"name": "retrain"})
    version = hashlib.md5(_FLOW.read_bytes(), usedforsecurity=False).hexdigest()
    pending = {"type": "PENDING", "name": "Pending"}
    run = {
        "flow_id": flow["id"],
        "flow_version": version,
        "name": name,
        "parameters": parameters,
        "empirical_policy": {"retries": 0, "retry_delay": 0},
        "state": pending,
    }
    return str(_post(server, "flow_runs/", run)["id"])


def _set_states(server: httpx.Client, run: str, states: Sequence[Mapping[str, Any]]) -> None:
    for state in states:
        _post(server, f"flow_runs/{run}/set_state", {"state": state})


def _post(server: httpx.Client, path: str, content: Mapping[str, Any]) -> Any:
    return server.post(path, json=content).raise_for_status().json()

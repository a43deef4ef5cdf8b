"""A Prefect server for one run, if none is configured; it ends with the run, even if the run is killed.

Prefect's own temporary server outlives a killed flow: only a flow that ends normally stops it.
"""

from __future__ import annotations

import atexit
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from flows import child_process
from params import TransientError
from trainer.runtime.lifetime import stop_group

_STARTUP_S = 90.0


@contextlib.contextmanager
def ensure_server(log_file: Path) -> Iterator[None]:
    """Use the configured Prefect server, or start one that runs until this process ends.

    Raises:
        TransientError: the server did not start.
    """
    if get_current_settings().api.url:
        yield
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("wb") as log:
        arguments = ["server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-services", "--no-ui"]
        server = child_process.start("prefect", arguments, log)
    atexit.register(stop_group, server, child_process.GRACE_S)  # later than this block: Prefect sends events at exit
    url = f"http://127.0.0.1:{port}/api"
    give_up = time.monotonic() + _STARTUP_S
    while not _answers(url):
        if server.poll() is not None or time.monotonic() > give_up:
            raise TransientError("Prefect's server", "did not start", f"see {log_file}")
        time.sleep(0.1)
    with temporary_settings({PREFECT_API_URL: url}):
        yield


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False

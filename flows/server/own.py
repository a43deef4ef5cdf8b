"""A Prefect server for one run, if none is configured; it ends with the run, even if the run is killed.

Prefect's own temporary server outlives a killed flow: only a flow that ends normally stops it. This one starts while the
flow is imported. Its password is random, so that only this process can use it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from flows import child_process
from flows.server import password
from params import TransientError
from trainer.runtime.lifetime import stop_process_group
from trainer.runtime.memory import reduce_garbage_collection

_STARTUP_S = 90.0


class OwnPrefectServer:
    """A server that is starting; it ends with this process."""

    def __init__(self, log_file: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/api"
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._password = password.generate_credentials()
        with log_file.open("wb") as log:
            own = {password.SERVER: self._password}
            self.process = child_process.start_python_module("flows.server.own", [str(port)], log, own)
        # Not sooner: Prefect sends events at exit. At once: what the server has answered is in its database.
        atexit.register(stop_process_group, self.process, 0)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Use it for the flows that run meanwhile, as soon as it answers."""
        from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

        self._wait()
        with temporary_settings({PREFECT_API_URL: self.url, PREFECT_API_AUTH_STRING: self._password}):
            yield

    def _wait(self) -> None:
        import httpx

        give_up = time.monotonic() + _STARTUP_S
        with httpx.Client(timeout=5, trust_env=False) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{self.url}/health").status_code == httpx.codes.OK:
                        return
                if self.process.poll() is not None or time.monotonic() > give_up:
                    raise TransientError("Prefect's server", "did not start", f"see {self.log_file}")
                time.sleep(0.05)


def is_own_server_needed() -> bool:
    """Whether neither the environment nor a profile of Prefect's names a server."""
    if os.environ.get("PREFECT_API_URL"):  # it outranks all other settings
        return False
    from prefect.settings import get_current_settings

    return not get_current_settings().api.url


def _serve(port: int) -> None:
    """Run a server without background services and pages."""
    reduce_garbage_collection()
    import uvicorn
    from prefect.settings import PREFECT_SERVER_UI_ENABLED, get_current_settings, temporary_settings

    get_current_settings().home.mkdir(parents=True, exist_ok=True)
    os.environ |= {"PREFECT__SERVER_WEBSERVER_ONLY": "1", "PREFECT__SERVER_FINAL": "1"}
    with temporary_settings({PREFECT_SERVER_UI_ENABLED: False}):
        app = "prefect.server.api.server:create_app"
        uvicorn.run(app, factory=True, host="127.0.0.1", port=port, log_level="error", lifespan="on")


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

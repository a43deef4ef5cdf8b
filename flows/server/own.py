"""A Prefect server for one run, if none is configured; it ends with the run, even if the run is killed.

Prefect's own temporary server outlives a killed flow: only a flow that ends normally stops it. This one starts while the
flow is imported. Its password is random, so that only this process can use it.

Two servers on one SQLite file refuse requests for minutes, so no other server ever has its database: PREFECT_HOME/evergreen holds
one for each run that goes on at the same time. What a database says of past runs stays there; `evergreen history` has its own log.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows import child_process
from flows.server import password
from params import StorageError, TransientError
from params.foundation.file_lock import hold_file_lock
from params.foundation.secrets import without_secrets
from trainer.runtime.lifetime import stop_process_group
from trainer.runtime.memory import reduce_garbage_collection

logger = logging.getLogger(__name__)
_STARTUP_S = 900.0
"""How long a server may take to answer: on a busy machine, the first one of a user took minutes to make its database."""
_SLOW_S = 30.0
"""After so long, whoever waits is told."""
_SETTINGS = {"PREFECT__SERVER_WEBSERVER_ONLY": "1", "PREFECT__SERVER_FINAL": "1", "PREFECT_SERVER_UI_ENABLED": "0"}
_SETTINGS |= {"PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "0", "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "0"}
"""No background services, no pages, and no types of blocks, which no run uses: to register them takes a second."""


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
            own = {password.SERVER: self._password, **_SETTINGS}
            self.process = child_process.start_python_module("flows.server.own", [str(port)], log, own)
        # Not sooner: Prefect sends events at exit. At once: what the server has answered is in its database.
        atexit.register(self.stop)

    def stop(self) -> None:
        """End it; nothing waits for what it does."""
        stop_process_group(self.process, 0)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Use it for the flows that run meanwhile, as soon as it answers; StorageError if there is no place for its database."""
        from prefect import settings

        _make_databases()
        self._wait()
        own: dict[Any, Any] = {settings.PREFECT_API_URL: self.url, settings.PREFECT_API_AUTH_STRING: self._password}
        # It has no pages, which the log would name, and no service that looks for lost runs. A flow's end waits for its heartbeats.
        own |= {settings.PREFECT_UI_URL: "", settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
        with settings.temporary_settings(own):
            yield

    def _wait(self) -> None:
        import httpx

        start, is_told = time.monotonic(), False
        with httpx.Client(timeout=5, trust_env=False) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{self.url}/health").status_code == httpx.codes.OK:
                        return
                status, waited_s = self.process.poll(), time.monotonic() - start
                if status is not None or waited_s > _STARTUP_S:
                    raise self._start_error(status, waited_s)
                if waited_s > _SLOW_S and not is_told:
                    logger.warning("waiting for Prefect's server, which starts slowly: other programs use this machine")
                    is_told = True
                time.sleep(0.05)

    def _start_error(self, status: int | None, waited_s: float) -> TransientError:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = f": {without_secrets(lines[-1])}" if lines else ", without a word"
        more = f" ({self.log_file} has all that it said)" if lines else ""
        if status is None:
            what = f"has not answered within {waited_s:.0f} s{said}"
            fix = f"run it again when other programs leave this machine some time{more}"
        else:
            what = f"ended with status {status} after {waited_s:.0f} s, before it answered{said}"
            fix = f"run it again; if it ends like this each time, set PREFECT_API_URL to a server of yours{more}"
        return TransientError("Prefect's server for this run", what, fix)


def is_own_server_needed() -> bool:
    """Whether neither the environment nor a profile of Prefect's names a server."""
    if os.environ.get("PREFECT_API_URL"):  # it outranks all other settings
        return False
    from prefect.settings import get_current_settings

    return not get_current_settings().api.url


def _serve(port: int) -> None:
    """Run a server on a database of its own."""
    reduce_garbage_collection()
    import uvicorn
    from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL, temporary_settings

    with _free_database(_make_databases()) as database:
        url = f"sqlite+aiosqlite:///{database}"
        with temporary_settings({PREFECT_SERVER_DATABASE_CONNECTION_URL: url}):
            app = "prefect.server.api.server:create_app"
            uvicorn.run(app, factory=True, host="127.0.0.1", port=port, log_level="error", lifespan="on")


def _make_databases() -> Path:
    """Return the folder of databases, which may be new."""
    from prefect.settings import get_current_settings

    folder = get_current_settings().home / "evergreen"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "set PREFECT_HOME to a folder that you may write to, with room for some megabytes"
        raise StorageError(str(folder), f"cannot be made: {error.strerror}", fix) from None
    return folder


@contextlib.contextmanager
def _free_database(folder: Path) -> Iterator[Path]:
    """Give the block the first database in `folder` that no other process uses; it may not exist yet."""
    with contextlib.ExitStack() as held:
        for number in itertools.count(1):
            with contextlib.suppress(TransientError):
                held.enter_context(hold_file_lock(folder / f"runs-{number}.lock", "a server"))
                break
        yield folder / f"runs-{number}.db"


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

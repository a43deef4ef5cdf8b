"""A Prefect server for one run, if none is configured; it ends with the run, even if the run is killed.

Prefect's own temporary server outlives a killed flow: only a flow that ends normally stops it. This one starts while the
flow is imported. It looks for migrations and block types only if Prefect or its database has changed since it last did.
Then it must not be stopped before it answers. Its password is random, so that only this process can use it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from flows import child_process
from flows.server import password
from params import TransientError
from trainer.runtime.lifetime import stop_group
from trainer.runtime.memory import collect_rarely

_STARTUP_S = 90.0


class Server:
    """A server that is starting; it ends with this process."""

    def __init__(self, log_file: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/api"
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._password = password.new()
        with log_file.open("wb") as log:
            own = {password.SERVER: self._password}
            self.process = child_process.start("flows.server.own", [str(port)], log, own)
        # Not sooner: Prefect sends events at exit. At once: what the server has answered is in its database.
        atexit.register(stop_group, self.process, 0)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Use it for the flows that run meanwhile, as soon as it answers.

        Raises:
            TransientError: it did not start.
        """
        from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

        _wait(self.process, self.url, self.log_file)
        with temporary_settings({PREFECT_API_URL: self.url, PREFECT_API_AUTH_STRING: self._password}):
            yield


def start_unless_configured(log_file: Path) -> Server | None:
    """Start a server if there is none to use; None if the environment or a profile of Prefect's names one."""
    if os.environ.get("PREFECT_API_URL"):  # it outranks all other settings
        return None
    started = Server(log_file) if "prefect" not in sys.modules else None
    from prefect.settings import get_current_settings

    if get_current_settings().api.url:  # `started` ends by itself
        return None
    return started or Server(log_file)


def _wait(server: subprocess.Popen[bytes], url: str, log_file: Path) -> None:
    """Wait until the server answers, and note that its database is ready."""
    import httpx

    give_up = time.monotonic() + _STARTUP_S
    with httpx.Client(timeout=5, trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{url}/health").status_code == httpx.codes.OK:
                    break
            if server.poll() is not None or time.monotonic() > give_up:
                raise TransientError("Prefect's server", "did not start", f"see {log_file}")
            time.sleep(0.05)
    if state := _state():
        _note().write_text(state, encoding="utf-8")


def is_prepared() -> bool:
    """Whether a server of this version of Prefect has prepared the database as it is now."""
    note = _note()
    return note.is_file() and _state() != "" and note.read_text(encoding="utf-8") == _state()


def _note() -> Path:
    from prefect.settings import get_current_settings

    return get_current_settings().home / "evergreen-database"


def _state() -> str:
    """Prefect's version, and place and revision of its database; empty if that is not a file that a server has prepared."""
    import prefect
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    dialect, _, path = str(PREFECT_API_DATABASE_CONNECTION_URL.value()).partition(":///")
    if not dialect.startswith("sqlite") or not Path(path).is_file():
        return ""
    try:
        with contextlib.closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as database:
            (revision,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
            (types,) = database.execute("SELECT count(*) FROM block_type").fetchone()
    except (sqlite3.Error, TypeError):
        return ""
    return f"{prefect.__version__} {path} {revision}" if types else ""


def _serve(port: int) -> None:
    """Run a server without background services and pages, unless a profile of Prefect's names another one."""
    collect_rarely()
    import uvicorn
    from prefect.settings import (
        PREFECT_API_BLOCKS_REGISTER_ON_START,
        PREFECT_API_DATABASE_MIGRATE_ON_START,
        PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION,
        PREFECT_SERVER_UI_ENABLED,
        get_current_settings,
        temporary_settings,
    )

    if get_current_settings().api.url:
        return
    get_current_settings().home.mkdir(parents=True, exist_ok=True)
    os.environ |= {"PREFECT__SERVER_WEBSERVER_ONLY": "1", "PREFECT__SERVER_FINAL": "1"}
    changed = {PREFECT_SERVER_UI_ENABLED: False}
    if is_prepared():
        changed[PREFECT_API_DATABASE_MIGRATE_ON_START] = False
        changed[PREFECT_API_BLOCKS_REGISTER_ON_START] = False
        changed[PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION] = False  # its hash takes as long as registering
    with temporary_settings(changed):
        uvicorn.run(
            "prefect.server.api.server:create_app",
            factory=True,
            host="127.0.0.1",
            port=port,
            log_level="error",
            lifespan="on",
        )


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

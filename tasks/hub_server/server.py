"""Run the local Hub: in a thread for tests and the pipeline, or until a signal for a shell.

    with LocalHub(Path(".hub"), tokens={"hf_local": "me"}) as hub:
        HfApi(endpoint=hub.endpoint, token="hf_local").create_repo("me/model")

FastAPI and dulwich are imported when a Hub is made, not before.
"""

from __future__ import annotations

import ipaddress
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from tasks.hub_server.sessions import Sessions

LOCAL_TOKEN = "hf_local"  # noqa: S105 (opens the Hub of this machine to this machine, and nothing else)
PART_BYTES = 64 << 20
_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 5


class LocalHub:
    """A Hub over a folder, for this machine only.

    Several of them, in several processes, may serve the same folder at the same time.

    Args:
        root: the folder of the repositories; made when it is missing.
        tokens: token -> user. A user writes in the namespace of its own name; others may read what is public.
        writers: namespace -> users who may write there too.
        administrators: users who may write in every namespace.
        host: an address of this machine; a loopback one, unless `beyond_this_machine`.
        port: 0 takes a free one.
        beyond_this_machine: whether other machines may be served.
        part_bytes: larger files are uploaded in parts of this size.

    Raises:
        ValueError: for a host that other machines can reach, or a user name that no namespace can have.
    """

    def __init__(
        self,
        root: Path,
        *,
        tokens: Mapping[str, str],
        writers: Mapping[str, Collection[str]] | None = None,
        administrators: Collection[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        beyond_this_machine: bool = False,
        part_bytes: int = PART_BYTES,
    ) -> None:
        from tasks.hub_server.access import Access

        is_loopback = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host).is_loopback
        if not is_loopback and not beyond_this_machine:
            raise ValueError(f"the local Hub serves loopback addresses only, not {host}")
        self._root = root
        self._access = Access(dict(tokens), dict(writers or {}), administrators)
        self._is_local = is_loopback
        self._sessions: Sessions | None = None
        self._host = "127.0.0.1" if host == "localhost" else host
        self._port = port
        self._part_bytes = part_bytes
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._endpoint = ""

    @property
    def endpoint(self) -> str:
        """The URL for HF_ENDPOINT; known as soon as the Hub is entered."""
        if not self._endpoint:
            raise RuntimeError("the local Hub is not running: enter it first")
        return self._endpoint

    def sign_in_link(self, user: str) -> str:
        """A URL by which a browser can read what `user` may read; it works once, while this Hub runs."""
        assert self._sessions is not None, "enter it first"
        return f"{self.endpoint}/-/sign-in?once={self._sessions.invite(user)}"

    def application(self) -> ASGIApp:
        """The ASGI application that is served."""
        from tasks.hub_server.application import build_application
        from tasks.hub_server.requests import Hub
        from tasks.hub_server.sessions import Sessions
        from tasks.hub_server.store import Store

        self._sessions = Sessions(cookie=f"hub-session-{self.endpoint.rpartition(':')[2]}")
        store = Store(self._root)
        store.sweep()
        return build_application(Hub(store, self._access, self._sessions, self._part_bytes, self._is_local))

    def __enter__(self) -> Self:
        import uvicorn

        self._root.mkdir(parents=True, exist_ok=True)
        listener = _listen(self._host, self._port)
        shown_host = f"[{self._host}]" if ":" in self._host else self._host
        self._endpoint = f"http://{shown_host}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self.application(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="local-hub", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                listener.close()
                raise RuntimeError("the local Hub did not start")
            time.sleep(0.005)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT_S)
        self._endpoint = ""

    def serve_forever(self) -> None:
        """Wait, inside the `with`, until SIGINT or SIGTERM asks to stop. For the main thread only."""
        asked = threading.Event()

        def ask(_number: int, _frame: FrameType | None) -> None:
            asked.set()

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self._thread is not None and self._thread.is_alive() and not asked.wait(0.2):
                pass
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol spelt out, asyncio sets TCP_NODELAY; without it, answers wait 40 ms for a delayed ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener

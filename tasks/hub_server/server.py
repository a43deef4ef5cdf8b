"""Run the local Hub: in a background thread, or in the foreground until a signal.

    token = new_token()
    with LocalHub(Path(".hub"), tokens={token: "me"}) as hub:
        HfApi(endpoint=hub.endpoint, token=token).create_repo("me/model")

FastAPI and dulwich are imported when a Hub starts, because they are slow to import.
"""

from __future__ import annotations

import ipaddress
import secrets
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from tasks.hub_server.access import Sessions
    from tasks.hub_server.trials import AnswerFunction

_BACKLOG = 128
_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 5


def new_token() -> str:
    """Return a random token. Every local user can connect to the port of a Hub, so its token must not be guessable."""
    return f"hf_{secrets.token_hex(20)}"


class LocalHub:
    """A Hub over a folder.

    Several processes may serve the same folder at the same time.

    Args:
        root: Folder of the repositories; created if it does not exist.
        tokens: Token -> user. A user can write in the namespace of the same name. Everyone can read public repositories.
        writers: Namespace -> users who can write there as well.
        administrators: Users who can write in every namespace.
        host: Address to listen on; a loopback address unless `allow_remote`.
        port: Port to listen on; 0 picks a free one.
        allow_remote: Whether other machines may connect.
        answer: Lets models answer texts on their pages; None: the pages have no box for texts.

    Raises:
        ValueError: `host` is not a loopback address, or a user or namespace has an invalid name.
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
        allow_remote: bool = False,
        answer: AnswerFunction | None = None,
    ) -> None:
        from tasks.hub_server.access import Access

        self._host = "127.0.0.1" if host == "localhost" else host
        self._is_local = ipaddress.ip_address(self._host).is_loopback
        if not self._is_local and not allow_remote:
            raise ValueError(f"the local Hub serves loopback addresses only, not {host}")
        self._root = root
        self._access = Access(dict(tokens), dict(writers or {}), administrators)
        self._sessions: Sessions | None = None
        self._port = port
        self._answer = answer
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.endpoint = ""
        """URL for HF_ENDPOINT, while the Hub runs."""

    def sign_in_link(self, user: str) -> str:
        """Return a URL that signs a browser in as `user`. It works once, while this Hub runs."""
        assert self._sessions is not None, "the Hub is not running"
        return f"{self.endpoint}/-/sign-in?once={self._sessions.create_link_secret(user)}"

    def application(self) -> ASGIApp:
        """Build the ASGI application."""
        from tasks.hub_server.access import Sessions
        from tasks.hub_server.application import build_application
        from tasks.hub_server.requests import Hub
        from tasks.hub_server.store import Store
        from tasks.hub_server.trials import Trials

        self._sessions = Sessions(cookie=f"hub-session-{self.endpoint.rpartition(':')[2]}")
        store = Store(self._root)
        store.remove_leftovers()
        trials = Trials(self._answer) if self._answer else None
        return build_application(Hub(store, self._access, self._sessions, self._is_local, trials))

    def __enter__(self) -> Self:
        import uvicorn

        from tasks.hub_server.limits import HEAD_TIMEOUT_S, MAX_CONNECTIONS, Connection

        self._root.mkdir(parents=True, exist_ok=True)
        listener = _listen(self._host, self._port)
        shown_host = f"[{self._host}]" if ":" in self._host else self._host
        self.endpoint = f"http://{shown_host}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self.application(),
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=_BACKLOG,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=HEAD_TIMEOUT_S,
            timeout_graceful_shutdown=1,
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

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT_S)
        self.endpoint = ""

    def serve_forever(self) -> None:
        """Wait inside the `with` block until SIGINT or SIGTERM. Call it from the main thread."""
        stop = threading.Event()

        def request_stop(_number: int, _frame: FrameType | None) -> None:
            stop.set()

        previous = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self._thread is not None and self._thread.is_alive() and not stop.wait(0.2):
                pass
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it, answers wait 40 ms for a delayed ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener

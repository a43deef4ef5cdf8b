"""Run the local Hub: in a background thread, or in the foreground until a signal.

    token = new_token()
    with LocalHub(Path(".hub"), tokens={token: "me"}) as hub:
        HfApi(endpoint=hub.endpoint, token=token).create_repo("me/model")

FastAPI and dulwich are imported when a Hub starts, because they are slow to import.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tasks.loopback import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tasks.hub_server.trials import AnswerFunction

_BACKLOG = 128
_PORT_ATTEMPTS = 20
_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 5


def new_token() -> str:
    """Return a random token. Every local user can connect to the port of a Hub, so its token must not be guessable."""
    return f"hf_{secrets.token_hex(20)}"


def _listen(host: str, port: int) -> socket.socket:
    from tasks.hub_server.limits import UNSENT_BYTES

    is_v6 = ":" in host
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    both = is_v6 and socket.has_dualstack_ipv6()  # `::` is IPv4, too
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    with contextlib.suppress(AttributeError, OSError):  # some systems have it not; connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    # asyncio sets TCP_NODELAY only if the socket knows its protocol; without it, answers wait 40 ms for a delayed ACK.
    return socket.socket(fileno=listener.detach())


def _listen_on_all_names(host: str, port: int) -> list[socket.socket]:
    """Listen at one port of a loopback address, of 127.0.0.1 and of ::1.

    Browsers look for `localhost`, and names under it, at both; if one were free, another user could answer there.
    """
    address = "127.0.0.1" if host.lower() == "localhost" else host
    attempts = _PORT_ATTEMPTS if port == 0 else 1
    for attempt in range(attempts):
        listeners = [_listen(address, port)]
        try:
            for other in sorted({"127.0.0.1", "::1"} - {address.removeprefix("::ffff:")}):
                with _without_address_family():
                    listeners.append(_listen(other, listeners[0].getsockname()[1]))
        except OSError as error:
            for listener in listeners:
                listener.close()
            if error.errno != errno.EADDRINUSE or attempt == attempts - 1:
                raise
        else:
            return listeners
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _without_address_family() -> Iterator[None]:
    """Ignore that this machine has no IPv6: then no browser on it looks there, either."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise


@dataclass
class LocalHub:
    """A Hub over a folder. Several processes may serve the same folder at the same time.

    Raises:
        ValueError: `host` is not a loopback address, or a user or namespace has an invalid name.
    """

    root: Path
    """Folder of the repositories; created if it does not exist."""
    _: KW_ONLY
    tokens: Mapping[str, str] = field(repr=False)
    """Token -> user. A user can write in the namespace of the same name. Everyone can read public repositories."""
    writers: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Namespace -> users who can write there as well."""
    administrators: Collection[str] = ()
    """Users who can write in every namespace."""
    host: str = "127.0.0.1"
    """Address to listen on; a loopback address unless `allow_remote`."""
    port: int = 0
    """Port to listen on; 0 picks a free one."""
    allow_remote: bool = False
    """Whether other machines may connect."""
    answer: AnswerFunction | None = None
    """Lets models answer texts on their pages; None: the pages have no box for texts."""
    endpoint: str = field(default="", init=False)
    """URL for HF_ENDPOINT, while the Hub runs."""

    def __post_init__(self) -> None:
        from tasks.hub_server.access import AccessRules

        self._is_local = is_loopback(self.host)
        if not self._is_local and not self.allow_remote:
            raise ValueError(f"the local Hub serves loopback addresses only, not {self.host}")
        self._access = AccessRules(dict(self.tokens), dict(self.writers), self.administrators)

    def sign_in_link(self, user: str) -> str:
        """Return a URL that signs a browser in as `user`. It works once, while this Hub runs."""
        return f"{self.endpoint}/-/sign-in?once={self._sessions.create_link_secret(user)}"

    def application(self) -> ASGIApp:
        from tasks.hub_server.access import BrowserSessions
        from tasks.hub_server.application import build_application
        from tasks.hub_server.requests import HubState
        from tasks.hub_server.store import RepositoryStore

        host, _, port = self.endpoint.removeprefix("http://").rpartition(":")
        self._sessions = BrowserSessions(cookie=f"hub-session-{port}", own_hosts=self._is_local)
        store = RepositoryStore(self.root)
        store.remove_leftovers()
        hosts = ("localhost", "*.localhost", "127.0.0.1", "[::1]", host) if self._is_local else ("*",)
        return build_application(HubState(store, self._access, self._sessions, hosts, self.answer))

    def __enter__(self) -> Self:
        import uvicorn

        from tasks.hub_server.limits import HEAD_TIMEOUT_S, MAX_CONNECTIONS, LimitedConnection
        from tasks.hub_server.prompt_server import PromptServer

        self.root.mkdir(parents=True, exist_ok=True)
        listeners = _listen_on_all_names(self.host, self.port) if self._is_local else [_listen(self.host, self.port)]
        shown_host = f"[{self.host}]" if ":" in self.host else self.host
        self.endpoint = f"http://{shown_host}:{listeners[0].getsockname()[1]}"
        config = uvicorn.Config(
            self.application(),
            http=LimitedConnection,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="asyncio",  # uvloop is as fast here, and leaves a pipe open, which would slow the end of the process
            backlog=_BACKLOG,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=HEAD_TIMEOUT_S,
            timeout_graceful_shutdown=1,
        )
        self._server = PromptServer(config)
        self._thread = threading.Thread(target=self._server.run, args=(listeners,), name="local-hub", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                for listener in listeners:
                    listener.close()
                raise RuntimeError("the local Hub did not start")
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.end()
        self._thread.join(_STOP_TIMEOUT_S)
        self.endpoint = ""

    def serve_forever(self, greeting: str = "") -> None:
        """Print a greeting, and wait inside the `with` block until SIGINT or SIGTERM. Call it from the main thread.

        The signals are awaited before anybody can read in the greeting that they end the Hub.
        """
        stop = threading.Event()
        both = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, lambda *_: stop.set()) for number in both}
        try:
            if greeting:
                print(greeting, flush=True)
            while self._thread.is_alive() and not stop.wait(0.2):
                pass
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

"""Time limits for huggingface_hub, which has none: no request and no wait outlasts the deadline of its caller.

The client sets no timeout and sleeps for as long as a `Retry-After` header says, and a timeout of the HTTP library starts
again with every byte that arrives. So a timer closes the connections at the deadline; the `trace` extension of httpx, which
is public, reports each new connection and each failure. A child process that is killed at the deadline would do the same,
but every one of them imports huggingface_hub again (0.5 s), and an evaluation alone asks the Hub four times.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore2
import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils._http import default_client_factory

from tasks.loopback import is_loopback

_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 120.0
"""For each single read and write."""
_LATE_S = 0.01
"""The timer fires this much after the deadline, so that a clock that is read then shows that it has passed."""
_CLIENT_RETRIES = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the client sends the request again by itself, after as long a sleep as the Hub asks for."""


class HubBusyError(Exception):
    def __init__(self, status: int, wait_s: float) -> None:
        super().__init__(f"the Hub answered {status} and asks to wait {wait_s:.0f} s")
        self.wait_s = wait_s


class RequestDeadlineError(Exception):
    """A request was cut off at the deadline. The client does not retry after this error."""

    def __init__(self) -> None:
        super().__init__("the deadline passed in the middle of a request")


# huggingface_hub has one HTTP client per process, and uploads from several threads.
_LOCK = threading.RLock()
_DEADLINES: list[float] = []
"""One per caller, in seconds of the monotonic clock. A request does not know its caller, so the latest one counts."""
_SOCKETS: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _seconds_left() -> float:
    """Return the time until the latest deadline; infinite outside of `limit_hub_requests`."""
    with _LOCK:
        return max(_DEADLINES, default=math.inf) - time.monotonic()


def _close_if_late() -> None:
    """Shut down all connections if the deadline has passed: a blocked read or write fails at once."""
    with _LOCK:
        for connection in _SOCKETS if _seconds_left() <= 0 else ():
            with contextlib.suppress(OSError):  # it is closed already
                # Not the method of SSLSocket, which would change the object under a thread that reads from it.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


@contextlib.contextmanager
def limit_hub_requests(limit_s: float = math.inf) -> Iterator[None]:
    """Inside the block, end every request in bounded time, and raise HubBusyError where the client would sleep.

    Args:
        limit_s: seconds after which a request raises RequestDeadlineError, even while data is still arriving. Between two
            attempts of its own the client may sleep up to 8 s longer. Without it only silence ends a request: 10 s to
            connect, 120 s for each read or write.
    """
    deadline = time.monotonic() + limit_s
    timer = threading.Timer(limit_s + _LATE_S, _close_if_late)
    timer.daemon = True
    with _LOCK:
        _limit_client()
        _DEADLINES.append(deadline)
    if limit_s != math.inf:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with _LOCK:
            _DEADLINES.remove(deadline)


@functools.cache
def _limit_client() -> None:
    set_client_factory(_limited_client)


def _limited_client() -> httpx2.Client:
    client = default_client_factory()
    allowed = [functools.partial(_allow_loopback, hook) for hook in client.event_hooks["request"]]
    client.event_hooks["request"] = [*allowed, _limit_request]
    client.event_hooks["response"].append(_raise_requested_wait)
    return client


def _allow_loopback(hook: Callable[[httpx2.Request], Any], request: httpx2.Request) -> None:
    """Run a hook of the library, but let requests to this machine pass with HF_HUB_OFFLINE: they need no network."""
    try:
        hook(request)
    except OfflineModeIsEnabled:
        if not is_loopback(request.url.host):
            raise


def _limit_request(request: httpx2.Request) -> None:
    left_s = _seconds_left()
    if left_s <= 0:
        raise RequestDeadlineError
    limits = {"connect": _CONNECT_TIMEOUT_S, "read": _ANSWER_TIMEOUT_S, "write": _ANSWER_TIMEOUT_S}
    given = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {
        **given,
        **{name: min(limit_s, given.get(name) or math.inf, left_s) for name, limit_s in limits.items()},
    }
    request.extensions["trace"] = _trace


def _trace(event: str, info: Mapping[str, Any]) -> None:
    """Collect the connections; name the cause of what fails after the deadline."""
    stream = info.get("return_value")
    if isinstance(stream, httpcore2.NetworkStream):
        with _LOCK:
            _SOCKETS.add(stream.get_extra_info("socket"))
        _close_if_late()
    # An answer that is cut off can look complete where the Hub did not say how long it is.
    elif event.endswith((".failed", "receive_response_body.complete")) and _seconds_left() <= 0:
        raise RequestDeadlineError


def _raise_requested_wait(response: httpx2.Response) -> None:
    is_retried = _DEADLINES and response.status_code in _CLIENT_RETRIES
    if is_retried and (wait_s := _requested_wait_s(response)) is not None:
        raise HubBusyError(response.status_code, wait_s)


def _requested_wait_s(response: httpx2.Response) -> float | None:
    """Read `Retry-After` (a number or a date) or, of a 429, the Hub's `ratelimit: "api";r=0;t=55`."""
    after = response.headers.get("retry-after", "")
    if after.isdecimal():
        return float(after)
    if after:
        try:
            here = response.headers.get("date")  # of the Hub's clock, like `after`
            now = parsedate_to_datetime(here).timestamp() if here else time.time()
            return max(0.0, parsedate_to_datetime(after).timestamp() - now)
        except ValueError:
            return None
    limit = re.search(r"\br=0;t=(\d+)", response.headers.get("ratelimit", "")) if response.status_code == 429 else None
    return float(limit[1]) if limit else None

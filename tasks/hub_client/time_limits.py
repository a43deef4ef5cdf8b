"""Time limits for huggingface_hub, which has none: no request and no wait outlasts the deadline of its caller.

The client sets no timeout and sleeps for as long as a `Retry-After` header says, and a timeout of the HTTP library starts
again with every byte that arrives. So a timer closes the connections at the deadline; the `trace` extension of httpx, which
is public, reports each new connection and each failure. A child process that is killed at the deadline would do the same,
but every one of them imports huggingface_hub again (0.5 s), and an evaluation alone asks the Hub four times.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore2
import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import default_client_factory

_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 120.0
"""For each single read and write."""
_LATE_S = 0.01
"""The timer fires this much after the deadline, so that a clock that is read then shows that it has passed."""
_CLIENT_RETRIES = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the client sends the request again by itself, after as long a sleep as the Hub asks for."""


class BusyError(Exception):
    """The Hub asks to wait."""

    def __init__(self, status: int, wait_s: float) -> None:
        super().__init__(f"the Hub answered {status} and asks to wait {wait_s:.0f} s")
        self.wait_s = wait_s


class OutOfTimeError(Exception):
    """A request was cut off at the deadline. The client does not retry after this error."""

    def __init__(self) -> None:
        super().__init__("the deadline passed in the middle of a request")


@dataclass
class _Requests:
    """The requests of this process: huggingface_hub has one HTTP client per process, and uploads from several threads."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    has_limits: bool = False
    deadlines: list[float] = field(default_factory=list)
    """One per caller, in seconds of the monotonic clock. A request does not know its caller, so the latest one counts."""
    sockets: weakref.WeakSet[socket.socket] = field(default_factory=weakref.WeakSet)

    def seconds_left(self) -> float:
        """Return the time until the latest deadline; infinite outside of `time_limit`."""
        with self.lock:
            return max(self.deadlines, default=math.inf) - time.monotonic()

    def close_if_late(self) -> None:
        """Shut down all connections if the deadline has passed: a blocked read or write fails at once."""
        with self.lock:
            if self.seconds_left() > 0:
                return
            for connection in self.sockets:
                with contextlib.suppress(OSError):  # it is closed already
                    # Not the method of SSLSocket, which would change the object under a thread that reads from it.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


_REQUESTS = _Requests()


@contextlib.contextmanager
def time_limit(limit_s: float = math.inf) -> Iterator[None]:
    """Inside the block, end every request in bounded time, and raise BusyError where the client would sleep.

    Args:
        limit_s: seconds after which a request raises OutOfTimeError, even while data is still arriving. Between two
            attempts of its own the client may sleep up to 8 s longer. Without it only silence ends a request: 10 s to
            connect, 120 s for each read or write.
    """
    deadline = time.monotonic() + limit_s
    with _REQUESTS.lock:
        if not _REQUESTS.has_limits:
            set_client_factory(_limited_client)
            _REQUESTS.has_limits = True
        _REQUESTS.deadlines.append(deadline)
    timer = None
    if limit_s != math.inf:
        timer = threading.Timer(limit_s + _LATE_S, _REQUESTS.close_if_late)
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer:
            timer.cancel()
        with _REQUESTS.lock:
            _REQUESTS.deadlines.remove(deadline)


def _limited_client() -> httpx2.Client:
    client = default_client_factory()
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], _limit_request],
        "response": [*hooks["response"], _raise_requested_wait],
    }
    return client


def _limit_request(request: httpx2.Request) -> None:
    left_s = _REQUESTS.seconds_left()
    if left_s <= 0:
        raise OutOfTimeError
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
        with _REQUESTS.lock:
            _REQUESTS.sockets.add(stream.get_extra_info("socket"))
        _REQUESTS.close_if_late()
    # An answer that is cut off can look complete where the Hub did not say how long it is.
    elif event.endswith((".failed", "receive_response_body.complete")) and _REQUESTS.seconds_left() <= 0:
        raise OutOfTimeError


def _raise_requested_wait(response: httpx2.Response) -> None:
    if _REQUESTS.deadlines and response.status_code in _CLIENT_RETRIES:
        wait_s = _requested_wait_s(response)
        if wait_s is not None:
            raise BusyError(response.status_code, wait_s)


def _requested_wait_s(response: httpx2.Response) -> float | None:
    """Read `Retry-After` (a number or a date) or, of a 429, the Hub's `ratelimit: "api";r=0;t=55`."""
    after = response.headers.get("retry-after", "")
    if after.isdecimal():
        return float(after)
    if after:
        try:
            return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
        except ValueError:
            return None
    limit = re.search(r"\br=0;t=(\d+)", response.headers.get("ratelimit", "")) if response.status_code == 429 else None
    return float(limit[1]) if limit else None

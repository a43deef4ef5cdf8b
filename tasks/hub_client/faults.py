"""What an error of the Hub client means: refused for good, or worth another look; and for how long to wait.

The client alone neither says so nor ends in bounded time: it has no timeout, sleeps for as long as a Retry-After says,
and a timeout of the HTTP library begins anew with every byte that drips in. No message made here holds the token or the
signature of an upload URL.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore2
import httpx2
from huggingface_hub import HfApi, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils._http import default_client_factory

from params.errors import EvergreenError, HubRefusedError

_UNCLEAR_STATUSES = frozenset({408, 409, 412, 425, 429})
"""And all from 500 on: another look may find the release landed, or the way free."""
_EXPIRED_STATUSES = frozenset({400, 403, 404, 410})
"""Of an upload: its URL is signed for a while, and the parts of a large file are gone once somebody, perhaps an earlier
attempt whose answer was lost, has put them together. The next attempt asks anew where to upload, and if at all."""
_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 120.0
_WRITE_BYTES = 16 << 10
"""As much is written under one timeout; a peer that takes in less than this in that time counts as hung."""
_LONGEST_BACKOFF_S = 30.0
_CLIENT_RETRIES = frozenset({408, 429, 500, 502, 503, 504})
"""What the client asks again by itself, after as long a sleep as the Hub asks for."""


class LookAgainError(Exception):
    """The Hub's state is not what its answers say it should be."""


class BusyError(Exception):
    """The Hub asks to wait."""

    def __init__(self, status: int, wait_s: float) -> None:
        super().__init__(f"the Hub answered {status} and asks to wait {wait_s:.0f} s")
        self.wait_s = wait_s


class OutOfTimeError(Exception):
    """A request was cut off at the deadline; not an error that the client would try again by itself."""

    def __init__(self) -> None:
        super().__init__("the deadline passed in the middle of a request")


# HfHubHTTPError is an httpx2 error. KeyError and ValueError: the answer is not the JSON that it should be.
_NETWORK_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, OSError, RuntimeError)
CLIENT_ERRORS = (*_NETWORK_ERRORS, LookAgainError, BusyError, OutOfTimeError, ValueError, KeyError)
"""What a call of the client may raise for the Hub's or the network's sake."""


def refusal(error: BaseException, api: HfApi, repo_id: str) -> EvergreenError | None:
    """What the Hub would say again, however often it is asked; None when asking again may help."""
    where = f"{api.endpoint}/{repo_id}"
    cause, uploading = _root_cause(error)
    fix = None
    if isinstance(cause, EvergreenError):
        return cause
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        expired = uploading and status in _EXPIRED_STATUSES
        if status not in _UNCLEAR_STATUSES and status < 500 and not expired:
            fix = _fix(status, repo_id)
    elif isinstance(cause, OfflineModeIsEnabled):
        fix = "unset HF_HUB_OFFLINE to publish"
    elif isinstance(cause, (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL)):
        fix = "correct the endpoint (HF_ENDPOINT) or the token (HF_TOKEN)"
    elif isinstance(cause, ValueError) and not isinstance(cause, json.JSONDecodeError):
        fix = "correct what the message names"
    return HubRefusedError(where, explain(error, api), fix) if fix else None


def _root_cause(error: BaseException) -> tuple[BaseException, bool]:
    """The error behind that of an upload, and whether it is one of an upload."""
    if isinstance(error, RuntimeError) and error.__cause__ is not None:
        return error.__cause__, True
    return error, False


def _fix(status: int, repo_id: str) -> str:
    namespace = repo_id.partition("/")[0]
    if status == 401:
        return "set HF_TOKEN to a valid token with write access, or run `hf auth login`"
    if status == 403:
        return f"give the token write access to {namespace}, or publish to a namespace that it may write"
    if status == 404:
        return f"check that {namespace} exists and that the token may see {repo_id}"
    return "correct what the message names"


def wait_before_retry(error: BaseException, attempt: int) -> float:
    """Seconds to wait after attempt number `attempt`, counted from 0: what the Hub asks for, or a backoff."""
    cause, _ = _root_cause(error)
    backoff_s = float(min(_LONGEST_BACKOFF_S, 0.5 * 2**attempt))
    return max(backoff_s, cause.wait_s) if isinstance(cause, BusyError) else backoff_s


def explain(error: BaseException, api: HfApi) -> str:
    """What happened, without the token and without the signature of an upload URL."""
    cause, uploading = _root_cause(error)
    if isinstance(cause, HfHubHTTPError):
        request = cause.response.request
        said = cause.server_message or cause.response.reason_phrase
        text = f"{cause.response.status_code} {said} ({request.method} {request.url.path})"
    else:
        text = f"{type(cause).__name__}: {cause}"
    if uploading:
        text = f"{error} {text}"
    if isinstance(token := api.token or get_token(), str) and token.strip():
        text = text.replace(token, "***").replace(token.strip(), "***")
    text = re.sub(r"hf_[A-Za-z0-9]{8,}", "hf_***", text)
    text = re.sub(r"(?i)(bearer\s+)[^\s'\"]+", r"\1***", text)
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]+", r"\1?***", text)


def refuse_malformed_token(api: HfApi, repo_id: str) -> None:
    """Let no token pass that cannot be sent, the client's own or the one it would find: the HTTP library would quote it.

    Raises:
        HubRefusedError: the token holds white space, such as a line end.
    """
    token = get_token() if api.token in (None, True) else api.token
    if isinstance(token, str) and not re.fullmatch(r"[\x21-\x7e]+", token):
        what = "the token holds white space or characters that no token has"
        raise HubRefusedError(f"{api.endpoint}/{repo_id}", what, "copy it again, without the line end")


@dataclass
class _Client:
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_bounded: bool = False
    ends: list[float] = field(default_factory=list)
    """For each caller the time (monotonic, in seconds) at which its last request ends."""


_CLIENT = _Client()


@contextlib.contextmanager
def bounded_client(limit_s: float = math.inf) -> Iterator[None]:
    """While inside, every request of the client ends in bounded time, and waits that the Hub asks for raise BusyError.

    The client has one factory in a process: it is set once, and its timeouts stay in place afterwards. It uploads in
    threads that do not know for whom: with several callers in a process, the latest of their limits holds for all.

    Args:
        limit_s: seconds after which a request that is still going on raises OutOfTimeError, whatever comes in. Between
            two attempts of its own the client may sleep up to 8 s longer.
    """
    end = time.monotonic() + limit_s
    with _CLIENT.lock:
        if not _CLIENT.is_bounded:
            set_client_factory(_make_client)
            _CLIENT.is_bounded = True
        _CLIENT.ends.append(end)
    try:
        yield
    finally:
        with _CLIENT.lock:
            _CLIENT.ends.remove(end)


def _make_client() -> httpx2.Client:
    client = default_client_factory()
    client.timeout = httpx2.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks["response"], _hand_over_waits]}
    # The transports are the client's own, one for each proxy of the environment. It has no public way to their sockets.
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001
        if transport is not None:
            assert isinstance(transport, httpx2.HTTPTransport)
            pool = transport._pool  # noqa: SLF001
            pool._network_backend = _BoundedBackend(pool._network_backend)  # noqa: SLF001
    return client


def _seconds_left() -> float:
    """Until the deadline; above 0."""
    with _CLIENT.lock:
        left_s = max(_CLIENT.ends, default=math.inf) - time.monotonic()
    if left_s <= 0:
        raise OutOfTimeError
    return left_s


@contextlib.contextmanager
def _until_deadline(timeout_s: float | None) -> Iterator[float | None]:
    """The timeout of one read or write, which ends at the deadline at the latest."""
    left_s = _seconds_left()
    try:
        yield timeout_s if left_s == math.inf else min(left_s, timeout_s or left_s)
    except httpcore2.TimeoutException:
        _seconds_left()
        raise


class _BoundedStream(httpcore2.NetworkStream):
    """A connection on which every read and write ends at the deadline."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _until_deadline(timeout) as left_s:
            return self._stream.read(max_bytes, left_s)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITE_BYTES):
            with _until_deadline(timeout) as left_s:
                self._stream.write(buffer[start : start + _WRITE_BYTES], left_s)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        with _until_deadline(timeout) as left_s:
            return _BoundedStream(self._stream.start_tls(ssl_context, server_hostname, left_s))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _BoundedBackend(httpcore2.NetworkBackend):
    """Makes connections, each within the deadline."""

    def __init__(self, backend: httpcore2.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        with _until_deadline(timeout) as left_s:
            return _BoundedStream(self._backend.connect_tcp(host, port, left_s, local_address, socket_options))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


def _hand_over_waits(response: httpx2.Response) -> None:
    if _CLIENT.ends and response.status_code in _CLIENT_RETRIES:
        wait_s = _asked_wait(response)
        if wait_s is not None:
            raise BusyError(response.status_code, wait_s)


def _asked_wait(response: httpx2.Response) -> float | None:
    """Seconds from `Retry-After` (a number or a date) or, of a 429, from the Hub's `ratelimit: "api";r=0;t=55`."""
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

"""Limits of connections (how many, and how long each may wait for its client) and of bodies (size and time)."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from tasks.hub_server.errors import HubError

ANONYMOUS_BYTES = 256 << 10
"""For a body that needs no token."""
BODY_BYTES = 8 << 20
COMMIT_BYTES = 256 << 20
"""A commit is one request, which contains every file that is not a large file."""
MAX_CONNECTIONS = 256
"""Well below 1024, the usual limit of open files: at that limit, nobody could connect any more."""
HEAD_TIMEOUT_S = 15
"""From the start of a connection to the end of the first request's head."""
SEND_TIMEOUT_S = 60
"""For a client that does not read its answer."""
_BODY_TIMEOUT_S = 30
_MIN_BYTES_PER_S = 16 << 10


class LimitedConnection(H11Protocol):
    """A connection of uvicorn, with time limits for the head of a request and for reading the answer.

    If there are too many connections, the one that has waited longest for a request is closed. uvicorn's own timer, which
    limits the time between two requests, is also that of the head: only a complete head stops it.
    """

    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        others = [other for other in self.connections if isinstance(other, LimitedConnection)]
        timers = {other: timer for other in others if (timer := other.timeout_keep_alive_task)}
        if timers and len(self.connections) >= MAX_CONNECTIONS:
            oldest = min(timers, key=lambda other: timers[other].when())
            self.connections.discard(oldest)  # it is counted until its transport is closed
            oldest.transport.abort()
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_TIMEOUT_S, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        self.conn.receive_data(data)
        self.handle_events()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._stop_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_timer = self.loop.call_later(SEND_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()

    def _stop_send_timer(self) -> None:
        if self._send_timer:
            self._send_timer.cancel()


async def read_limited_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request. HubError 413 if it is larger than `max_bytes`, TimeoutError if it is slow."""
    too_large = HubError(413, f"The request is larger than {max_bytes} bytes")
    if int(request.headers.get("content-length", "0")) > max_bytes:
        raise too_large
    body = bytearray()
    async with transfer_timeout(max_bytes):
        async for block in request.stream():
            body += block
            if len(body) > max_bytes:
                raise too_large
    return bytes(body)


def transfer_timeout(size: int) -> asyncio.Timeout:
    """Return a context that raises TimeoutError if `size` bytes arrive too slowly."""
    return asyncio.timeout(_BODY_TIMEOUT_S + size / _MIN_BYTES_PER_S)

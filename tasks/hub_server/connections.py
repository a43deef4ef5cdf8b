"""Limits of connections: how many the local Hub has at a time, and how long each may wait for its client."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 256
"""Well below 1024, the usual limit of open files: at that limit, nobody could connect any more."""
HEAD_TIMEOUT_S = 15
"""From the start of a connection to the end of the first request's head."""
SEND_TIMEOUT_S = 60
"""For a client that does not read its answer."""


class Connection(H11Protocol):
    """A connection of uvicorn, with time limits for the head of a request and for reading the answer.

    If there are too many connections, the one that has waited longest for a request is closed. uvicorn's own timer, which
    limits the time between two requests, is also that of the head: only a complete head stops it.
    """

    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        others = [other for other in self.connections if isinstance(other, Connection)]
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

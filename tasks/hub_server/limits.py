"""Limits of connections (how many, and how long each may wait for its client) and of bodies (size and time)."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import AsyncIterator
from functools import lru_cache

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
"""In each such time, a client must read `_MIN_BYTES_PER_S` a second of an answer that waits for it."""
UNSENT_BYTES = 128 << 10
"""Of an answer, the kernel takes so much that it cannot send yet: with megabytes there, nobody would know how slowly they are read."""
_WINDOW_S = 30
"""In each such time, a body must come to its end or bring `_MIN_BYTES_PER_S` a second."""
_MIN_BYTES_PER_S = 16 << 10
_IPV4, _IPV4_NETWORK_BITS, _IPV6_NETWORK_BITS = 4, 24, 64


class LimitedConnection(H11Protocol):
    """A connection of uvicorn, with time limits for the head of a request and for reading the answer.

    If there are too many connections, one is closed: the one that has waited longest for a request or, if none waits, the
    oldest one of the user or network that has most of them. So nobody locks others out by requests that never end. uvicorn's own
    timer, which limits the time between two requests, is also that of the head: only a complete head stops it.
    """

    _send_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    """Of the answer, when writing was paused."""
    _read_bytes = 0
    """Since the timer began."""
    began = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.began = self.loop.time()
        if len(self.connections) >= MAX_CONNECTIONS:
            closed = self._find_dispensable()
            self.connections.discard(closed)  # it is counted until its transport is closed
            closed.transport.abort()
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_TIMEOUT_S, self.timeout_keep_alive_handler)

    def _find_dispensable(self) -> LimitedConnection:
        others = [each for each in self.connections if isinstance(each, LimitedConnection) and each is not self]
        timers = {other: timer for other in others if (timer := other.timeout_keep_alive_task)}
        if timers:
            return min(timers, key=lambda other: timers[other].when())
        for part in range(2):  # the network first: whoever has many addresses must not seem to be many clients
            counts = Counter(other.client_names[part] for other in others)
            ((busiest, _),) = counts.most_common(1)
            others = [other for other in others if other.client_names[part] == busiest]
        return min(others, key=lambda other: other.began)

    @property
    def client_names(self) -> tuple[str, str]:
        """The user whom the request has named, twice; without one, the network and the address."""
        user = self.scope["state"].get("user") if self.scope else None
        if user:
            return f"user {user}", f"user {user}"
        address = self.client[0] if self.client else ""
        return _network(address), address

    def data_received(self, data: bytes) -> None:
        self.conn.receive_data(data)
        self.handle_events()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._stop_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        if not self._send_timer:
            self._start_send_timer()

    def resume_writing(self) -> None:
        self._count_what_is_read()
        super().resume_writing()

    def _count_what_is_read(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._read_bytes += self._unread_bytes - unread
        self._unread_bytes = unread

    def _start_send_timer(self) -> None:
        self._read_bytes = 0
        self._send_timer = self.loop.call_later(SEND_TIMEOUT_S, self._end_send_timer)

    def _end_send_timer(self) -> None:
        self._send_timer = None
        if not self.flow.write_paused:
            return
        self._count_what_is_read()
        if self._read_bytes < SEND_TIMEOUT_S * _MIN_BYTES_PER_S:
            self.transport.abort()
        else:
            self._start_send_timer()

    def _stop_send_timer(self) -> None:
        if self._send_timer:
            self._send_timer.cancel()


@lru_cache(maxsize=1024)  # all of them are asked for at each connection that is one too many
def _network(address: str) -> str:
    """Return the network of an address, all of which one client may have: this machine, or 2**8 of IPv4 or 2**64 of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback:
        return "this machine"
    bits = _IPV4_NETWORK_BITS if found.version == _IPV4 else _IPV6_NETWORK_BITS
    return str(ipaddress.ip_network((found, bits), strict=False))


async def read_limited_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request. HubError 413 if it is larger than `max_bytes`, TimeoutError if it is slow."""
    too_large = HubError(413, f"The request is larger than {max_bytes} bytes")
    if int(request.headers.get("content-length", "0")) > max_bytes:
        raise too_large
    body = bytearray()
    async for block in read_blocks(request):
        body += block
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def read_blocks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body of a request as it arrives. TimeoutError if too little of it has come in some `_WINDOW_S` seconds."""
    now = asyncio.get_running_loop().time
    blocks, window_ends, received = request.stream(), now() + _WINDOW_S, 0
    while True:
        async with asyncio.timeout_at(window_ends):
            try:
                block = await anext(blocks)
            except StopAsyncIteration:
                return
        received += len(block)
        if received >= _WINDOW_S * _MIN_BYTES_PER_S:
            window_ends, received = now() + _WINDOW_S, 0
        yield block

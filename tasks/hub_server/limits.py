"""Limits on every request: the size of the body, the time that it may take, and the host name.

The host name is checked against DNS rebinding: a website can let its own name resolve to 127.0.0.1 and then read, in the
browser of a user of this machine, what a local server answers. The Host header still holds the website's name.
"""

from __future__ import annotations

import asyncio
import ipaddress

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tasks.hub_server.errors import HubError

ANONYMOUS_BYTES = 256 << 10
"""For a body that needs no token."""
BODY_BYTES = 8 << 20
COMMIT_BYTES = 256 << 20
"""A commit is one request, which contains every file that is not a large file."""
_BODY_TIMEOUT_S = 30
_MIN_BYTES_PER_S = 16 << 10


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        HubError: 413 if it is larger than `max_bytes`.
        TimeoutError: It did not arrive in time.
    """
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


class HostCheck:
    """ASGI middleware that refuses foreign host names (421) when only this machine is served."""

    def __init__(self, app: ASGIApp, *, is_local: bool) -> None:
        self._app = app
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_local and not _names_this_machine(Headers(scope=scope).get("host", "")):
            message = "This Hub serves this machine only: use localhost or 127.0.0.1 as its address"
            await JSONResponse({"error": message}, 421)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _names_this_machine(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False

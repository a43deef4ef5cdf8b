"""Limits on every request: the size of the body and, when only this machine is served, the host name.

The host name is checked against DNS rebinding: a website can let its own name resolve to 127.0.0.1 and then read, in the
browser of a user of this machine, what a local server answers. The Host header still holds the website's name.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES = 8 << 20
COMMIT_BYTES = 256 << 20
"""A commit is one request, which contains every file that is not a large file."""


class RequestLimits:
    """ASGI middleware that refuses bodies that are too large (413) and foreign host names (421)."""

    def __init__(self, app: ASGIApp, *, is_local: bool) -> None:
        self._app = app
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._is_local and not _names_this_machine(headers.get("host", "")):
            message = "This Hub serves this machine only: use localhost or 127.0.0.1 as its address"
            await JSONResponse({"error": message}, 421)(scope, receive, send)
            return
        max_bytes = _max_bytes(scope["path"])
        content_length = headers.get("content-length", "0")
        if max_bytes is not None and content_length.isdigit() and int(content_length) > max_bytes:
            message = f"The request is larger than {max_bytes} bytes"
            await JSONResponse({"error": message}, 413, {"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, receive if max_bytes is None else _limit_bytes(receive, max_bytes), send)


def _max_bytes(path: str) -> int | None:
    """Return the maximum size of a request's body; None for uploads, whose size is signed."""
    if path.startswith("/uploads/"):
        return None
    return COMMIT_BYTES if path.startswith("/api/") and "/commit/" in path else BODY_BYTES


def _limit_bytes(receive: Receive, max_bytes: int) -> Receive:
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise HTTPException(413, f"The request is larger than {max_bytes} bytes")
        return message

    return receive_limited


def _names_this_machine(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False

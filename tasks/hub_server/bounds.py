"""What no request gets past, whatever its route: bodies are bounded, and a Hub of this machine answers to its names.

A page on the internet can make its own name resolve to 127.0.0.1, and then read, as its own, whatever answers there
without a token (DNS rebinding). The browser says by which name it asked.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES = 8 << 20
COMMIT_BYTES = 256 << 20
"""The changes of a commit travel in one body, and files that are not large ones within them."""


class BoundedRequests:
    """Refuse what is too large (413) or addressed to another host (421)."""

    def __init__(self, app: ASGIApp, *, is_local: bool) -> None:
        self._app = app
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._is_local and not _names_this_machine(headers.get("host", "")):
            message = "This Hub serves its own machine: ask for localhost or 127.0.0.1"
            await JSONResponse({"error": message}, 421)(scope, receive, send)
            return
        most = _most_bytes(scope["path"])
        announced = headers.get("content-length", "0")
        if most is not None and announced.isdigit() and int(announced) > most:
            refusal = JSONResponse({"error": f"The request is larger than {most} bytes"}, 413, {"Connection": "close"})
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive if most is None else _counted(receive, most), send)


def _most_bytes(path: str) -> int | None:
    """The bytes that a request's body may have; None for uploads, whose size is signed."""
    if path.startswith("/uploads/"):
        return None
    return COMMIT_BYTES if path.startswith("/api/") and "/commit/" in path else BODY_BYTES


def _counted(receive: Receive, most: int) -> Receive:
    received = 0

    async def count() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"The request is larger than {most} bytes")
        return message

    return count


def _names_this_machine(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False

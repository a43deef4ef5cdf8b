"""A Hub that fails as it is told, and many schedules of failures under which a release must land exactly once."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.exactly_once import Pace
from tasks.hub import LocalHub

STRANGER = {"x-stranger": "1"}
"""Headers of a client for whom the Hub never fails."""


@dataclass
class Fault:
    """What happens to the next `times` requests whose "METHOD /path" matches."""

    match: str
    kind: str
    """`before`: `status` instead of the work; `after`: the work, then `status`; `lost`: the work, then half an answer;
    `cut`: a part of the request is read, then the connection is closed; `silent`: no work and no answer; `mute`: the
    work, and no answer; `first`: `action`, then the work."""
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    action: Callable[[], None] | None = field(default=None, repr=False)


class Faults:
    """ASGI middleware that answers as `faults` say, and counts the requests that did their work."""

    def __init__(self, app: ASGIApp, faults: list[Fault], done: list[str]) -> None:
        self.app, self.faults, self.done = app, faults, done
        self.lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        line = f"{scope['method']} {scope['path']}"
        fault = None if (b"x-stranger", b"1") in scope["headers"] else self.take(line)
        if fault is not None and fault.kind == "first":
            assert fault.action is not None
            await asyncio.to_thread(fault.action)
            fault = None
        if fault is None:
            self.done.append(line)
            return await self.app(scope, receive, send)
        if fault.kind == "cut":
            await receive()
        elif fault.kind in ("before", "silent"):
            while (await receive()).get("more_body"):
                pass
        else:
            self.done.append(line)
            await self.app(scope, receive, self.swallow)
        if fault.kind in ("silent", "mute"):
            while (await receive())["type"] != "http.disconnect":
                pass
            return None
        if fault.kind in ("lost", "cut"):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
            return None  # uvicorn closes the connection in the middle of the answer
        headers = [(name.encode(), value.encode()) for name, value in fault.headers.items()]
        headers.append((b"content-length", b"0"))
        await send({"type": "http.response.start", "status": fault.status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return None

    async def swallow(self, message: Message) -> None:
        """Let the answer of the application go nowhere."""

    def take(self, line: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and re.search(fault.match, line):
                    fault.times -= 1
                    return fault
        return None


class FaultyHub(LocalHub):
    """A local Hub whose faults a test can set."""

    faults: list[Fault]
    done: list[str]

    def application(self) -> ASGIApp:
        self.faults, self.done = [], []
        return Faults(super().application(), self.faults, self.done)


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def pace(self, attempts: int = 8) -> Pace:
        """A publisher's, by this clock."""
        return Pace(attempts, self.sleep, self)

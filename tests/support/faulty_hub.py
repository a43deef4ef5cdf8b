"""A local Hub that fails where a test says so, and a clock that passes only in sleep."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.utils._http
from huggingface_hub.utils import disable_progress_bars, logging
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.hub_client.repository import RetryPolicy
from tasks.hub_server.server import LocalHub

STRANGER = {"x-stranger": "1"}
"""Headers of a client whose requests never fail."""


@dataclass
class Fault:
    """What happens to the next `times` requests whose "METHOD /path" matches."""

    match: str
    kind: str
    """`before`: `status` instead of the work; `after`: the work, then `status`; `lost`: the work, then half an answer;
    `cut`: a part of the request is read, then the connection is closed; `silent`: no work and no answer; `mute`: the
    work, and no answer; `none`: the work and its answer."""
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    action: Callable[[], None] = field(default=lambda: None, repr=False)
    """What happens first."""


class Faults:
    """ASGI middleware that answers as `faults` say, and counts the requests that did their work.

    To a request line belongs the value of the header x-schedule.
    """

    def __init__(self, app: ASGIApp, faults: list[Fault], done: list[str]) -> None:
        self.app, self.faults, self.done = app, faults, done
        self.lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        line = f"{scope['method']} {scope['path']} {headers.get(b'x-schedule', b'').decode()}".rstrip()
        fault = None if b"x-stranger" in headers else self.take(line)
        if fault is not None:
            await asyncio.to_thread(fault.action)
        if fault is None or fault.kind == "none":
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
        told = [(name.encode(), value.encode()) for name, value in fault.headers.items()]
        told.append((b"content-length", b"0"))
        await send({"type": "http.response.start", "status": fault.status, "headers": told})
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

    def retries(self, attempts: int = 8) -> RetryPolicy:
        """Attempts by this clock."""
        return RetryPolicy(attempts, self.sleep, self)


def make_client_quick() -> None:
    """Let the client of this process wait for nothing by itself, use no xet storage, and print nothing."""
    huggingface_hub.constants.HF_HUB_DISABLE_XET = True
    huggingface_hub.utils._http.time = SimpleNamespace(sleep=lambda _: None, time=time.time)
    disable_progress_bars()
    logging.set_verbosity_error()


@contextlib.contextmanager
def quick_client() -> Iterator[None]:
    """`make_client_quick` inside the block."""
    before = huggingface_hub.constants.HF_HUB_DISABLE_XET, huggingface_hub.utils._http.time
    make_client_quick()
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_DISABLE_XET, huggingface_hub.utils._http.time = before

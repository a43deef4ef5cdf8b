"""How a Hub ends: at once, but for answers that are on their way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any

import httpx2
import pytest
import uvicorn

from tasks.hub_server.prompt_server import PromptServer
from tasks.hub_server.server import LocalHub

CONTENT = b"x" * (8 << 20)
"""More than the buffers of a connection hold."""


def test_a_hub_ends_at_once_although_its_client_keeps_the_connection(tmp_path) -> None:
    with LocalHub(tmp_path, tokens={}) as hub, httpx2.Client() as client:
        assert client.get(f"{hub.endpoint}/api/models").status_code == 200
        start = time.monotonic()
        hub.__exit__()
        took_s = time.monotonic() - start
    assert took_s < 0.08, "uvicorn itself takes 0.1 to 0.2 s"


@pytest.mark.parametrize(("takes_s", "is_answered"), [(0.2, True), (30.0, False)])
def test_an_answer_on_its_way_has_a_second(takes_s: float, *, is_answered: bool) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(takes_s)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": CONTENT})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(answer, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        server, got = PromptServer(config), list[bytes]()
        serves = threading.Thread(target=server.run, args=([listener],))
        serves.start()

        def ask() -> None:
            with contextlib.suppress(httpx2.RemoteProtocolError):  # the connection is closed without an answer
                got.append(httpx2.get(address, timeout=10).content)

        asks = threading.Thread(target=ask)
        asks.start()
        while not server.server_state.tasks:
            time.sleep(0.01)
        start = time.monotonic()
        server.end()
        serves.join(10)
        assert time.monotonic() - start < 1.5
    asks.join(10)
    assert got == ([CONTENT] if is_answered else [])

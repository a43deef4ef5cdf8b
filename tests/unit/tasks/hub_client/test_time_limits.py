"""No request and no wait outlasts its deadline, whatever the Hub does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import get_session

from params.foundation.errors import TransientError
from tasks.hub_client import time_limits
from tasks.hub_client.repository import HubRepository
from tasks.hub_client.time_limits import RequestDeadlineError, limit_hub_requests
from tasks.publishing.exactly_once import publish_release
from tests.support.faulty_hub import Clock, Fault, FaultyHub
from tests.support.publications import REPO, TOKEN, plan, publish


@contextlib.contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that calls `behave` with every connection until the block ends; yields its address."""
    stop = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while not stop.wait(0.02):
                behave(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)


def drip(first: bytes) -> Callable[[socket.socket], None]:
    """A peer that sends `first` on each connection, then a byte every 20 ms."""
    started: set[socket.socket] = set()

    def behave(connection: socket.socket) -> None:
        connection.sendall(b"x" if connection in started else first)
        started.add(connection)

    return behave


@pytest.mark.parametrize(
    "behave",
    [
        lambda connection: None,
        drip(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"),
        drip(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"),
        drip(b"HTTP/1.1 200 OK\r\nx-endless: "),
    ],
    ids=["silent", "drips a body", "drips a body without a length", "drips a header"],
)
def test_deadline_ends_a_slow_answer(folder: Path, behave: Callable[[socket.socket], None]) -> None:
    with peer(behave) as endpoint:
        repository = HubRepository(HfApi(endpoint=endpoint, token=TOKEN), REPO, timeout_s=0.6)
        before = time.monotonic()
        for call in (
            lambda: publish_release(repository, plan(folder)),
            repository.head,
            lambda: repository.holds("0" * 40),
        ):
            with pytest.raises(TransientError, match="the deadline passed in the middle of a request"):
                call()
        assert 1.8 <= time.monotonic() - before < 4


def test_deadline_ends_a_slow_upload() -> None:
    with peer(lambda connection: connection.recv(1) and None) as endpoint, limit_hub_requests(0.6):
        before = time.monotonic()
        with pytest.raises(RequestDeadlineError):
            get_session().put(f"{endpoint}/uploads/x", content=bytes(50 << 20))
        assert 0.55 <= time.monotonic() - before < 2


def test_no_request_starts_after_the_deadline(hub: FaultyHub) -> None:
    with limit_hub_requests(0.0), pytest.raises(RequestDeadlineError):
        HfApi(endpoint=hub.endpoint, token=TOKEN).whoami()
    assert HfApi(endpoint=hub.endpoint, token=TOKEN).whoami()["name"] == "alice", "outside there is no deadline"


@pytest.mark.parametrize("status", [429, 503])
def test_client_does_not_sleep_on_retry_after(
    api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, status: int
) -> None:
    hub.faults.append(Fault("GET .*/tree/", "before", status, {"retry-after": "31536000"}, times=99))
    with pytest.raises(TransientError, match="60 s do not allow another wait of 31536000 s"):
        publish(api, plan(folder), clock, timeout_s=60)
    assert clock.slept == []


def test_silent_hub_is_a_transient_error(
    hub: FaultyHub, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "_ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = HfApi(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", token=TOKEN)
        before = time.monotonic()
        with pytest.raises(TransientError, match="ReadTimeout"):
            publish(api, plan(folder), clock, attempts=2)
        assert time.monotonic() - before < 5


@pytest.mark.parametrize("ahead", [timedelta(hours=-2), timedelta(hours=2)])
def test_a_date_to_wait_for_is_one_of_the_hubs_clock(ahead: timedelta) -> None:
    there = datetime.now(UTC) + ahead
    headers = {"date": format_datetime(there, usegmt=True)}
    headers["retry-after"] = format_datetime(there + timedelta(seconds=90), usegmt=True)
    assert time_limits._requested_wait_s(httpx2.Response(503, headers=headers)) == 90

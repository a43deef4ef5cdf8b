"""No request and no wait outlasts its deadline, whatever the Hub does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import get_session

from params.errors import TransientError
from tasks.hub_client import time_limits
from tasks.hub_client.repository import Repository
from tasks.hub_client.time_limits import OutOfTimeError, time_limit
from tasks.publishing.exactly_once import publish_release
from tests.support.faulty_hub import Clock, Fault, FaultyHub
from tests.support.publications import REPO, TOKEN, plan, publish

# huggingface_hub uploads by `data=`, which httpx2 deprecates:
# https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/lfs.py (_upload_single_part)
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@contextlib.contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that treats every connection as `behave` says, until the block ends."""
    stop = threading.Event()

    def treat(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while not stop.wait(0.02):
                behave(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=treat, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)


def drip(first: bytes) -> Callable[[socket.socket], None]:
    """A peer that says `first` on each connection, and then a byte every 20 ms for ever."""
    begun: set[socket.socket] = set()

    def behave(connection: socket.socket) -> None:
        connection.sendall(b"x" if connection in begun else first)
        begun.add(connection)

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
def test_the_deadline_holds_whatever_the_hub_does(folder: Path, behave: Callable[[socket.socket], None]) -> None:
    with peer(behave) as endpoint:
        repository = Repository(HfApi(endpoint=endpoint, token=TOKEN), REPO, timeout_s=0.6)
        before = time.monotonic()
        for ask in (
            lambda: publish_release(repository, plan(folder)),
            repository.head,
            lambda: repository.holds("0" * 40),
        ):
            with pytest.raises(TransientError, match="the deadline passed in the middle of a request"):
                ask()
        assert 1.8 <= time.monotonic() - before < 4


def test_the_deadline_holds_when_an_upload_is_taken_in_slowly() -> None:
    with peer(lambda connection: connection.recv(1) and None) as endpoint, time_limit(0.6):
        before = time.monotonic()
        with pytest.raises(OutOfTimeError):
            get_session().put(f"{endpoint}/uploads/x", content=bytes(50 << 20))
        assert 0.6 <= time.monotonic() - before < 2


def test_after_the_deadline_no_request_begins(hub: FaultyHub) -> None:
    with time_limit(0.0), pytest.raises(OutOfTimeError):
        HfApi(endpoint=hub.endpoint, token=TOKEN).whoami()
    assert HfApi(endpoint=hub.endpoint, token=TOKEN).whoami()["name"] == "alice", "outside there is no deadline"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_no_answer_makes_the_client_sleep_by_itself(
    api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, status: int
) -> None:
    hub.faults.append(Fault("GET .*/tree/", "before", status, {"retry-after": "31536000"}, times=99))
    with pytest.raises(TransientError, match="60 s do not allow another wait of 31536000 s"):
        publish(api, plan(folder), clock, timeout_s=60)
    assert clock.slept == []


def test_a_hub_that_never_answers(hub: FaultyHub, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "_ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = HfApi(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", token=TOKEN)
        before = time.monotonic()
        with pytest.raises(TransientError, match="ReadTimeout"):
            publish(api, plan(folder), clock, attempts=2)
        assert time.monotonic() - before < 5

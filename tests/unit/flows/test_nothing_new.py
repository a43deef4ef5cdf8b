"""A run with nothing to do, on servers that do not take it; tests/e2e/test_drivers.py has those that do."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from flows.run import nothing_new
from params import TransientError
from params.foundation.artifacts import Artifacts


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Start a server with these answers by path, and 500 on all others; return its address. `hear` gets headers and content of each request.

    Each path has the answers of `first` before its own.
    """
    monkeypatch.setattr(nothing_new, "name_and_message", lambda *_: ("Nothing new", "nothing"))
    monkeypatch.setattr(nothing_new, "_WAITS_S", (0, 0))
    started: list[HTTPServer] = []

    def start(
        answers: dict[str, tuple[int, bytes]],
        hear: Callable[[Message, dict[str, Any]], object] = lambda *_: None,
        first: Sequence[tuple[int, bytes]] = (),
    ) -> str:
        asked = Counter[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hear(self.headers, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status, body = (*first, answers.get(self.path, (500, b"")))[min(asked[self.path], len(first))]
                asked[self.path] += 1
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}/api"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_the_password_is_sent(serve, monkeypatch) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:se:cret")
    sent: list[str] = []
    url = serve({"/api/flows/": (401, b"{}")}, lambda headers, _: sent.append(headers["Authorization"]))
    assert add(url) is False
    assert sent == [f"Basic {base64.b64encode(b'me:se:cret').decode()}"]


def add(url: str) -> bool:
    return nothing_new.add_run_to_server(url, Artifacts("tiny"), {"publish": "unchanged"}, {"recipe": "tiny"})


@pytest.mark.parametrize("answer", [(401, b"{}"), (403, b"{}"), (307, b""), (200, b"<html>"), (200, b"{}")])
def test_a_server_that_does_not_know_us_is_left_to_prefect(serve, answer) -> None:
    assert add(serve({"/api/flows/": answer})) is False


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "no address", "http://[::1"])
def test_a_server_that_is_not_there_is_left_to_prefect(serve, url) -> None:
    assert add(url) is False


@pytest.mark.parametrize("taken", ["/api/flows/", "/api/flow_runs/"])
def test_a_server_that_stops_in_between_is_an_error_that_a_new_run_mends(serve, taken) -> None:
    answers = dict.fromkeys(("/api/flows/", taken), (201, b'{"id": "1"}'))
    with pytest.raises(TransientError, match="run it again when the server answers"):
        add(serve(answers))


TAKEN = dict.fromkeys(("/api/flows/", "/api/flow_runs/", "/api/flow_runs/1/set_state"), (201, b'{"id": "1"}'))


@pytest.mark.parametrize("first", [[(503, b"")], [(429, b"")], [(502, b"<html>"), (503, b"")]])
def test_a_busy_server_is_asked_again(serve, first) -> None:
    assert add(serve(TAKEN, first=first)) is True


@pytest.mark.parametrize("answer", [(200, b"<html>"), (200, b"{}")])
def test_a_server_that_answers_with_something_else_in_between_is_an_error(serve, answer) -> None:
    with pytest.raises(TransientError, match="run it again when the server answers"):
        add(serve({**TAKEN, "/api/flow_runs/": answer}))


def test_a_request_that_is_sent_again_names_the_same_run(serve) -> None:
    """The first one may have made the run, although its answer was lost."""
    keys: list[str] = []

    def hear(_: Message, body: dict[str, Any]) -> None:
        keys.append(body.get("idempotency_key", ""))

    assert add(serve(TAKEN, hear, [(502, b"")])) is True
    asked = [key for key in keys if key]
    assert len(asked) == 2
    assert len(set(asked)) == 1


def test_a_server_that_stays_busy_is_left_to_prefect(serve) -> None:
    assert add(serve(TAKEN, first=[(503, b"")] * 3)) is False

"""The time of Prefect's server: heartbeats carry it, whatever this machine's clock says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import prefect.flow_engine
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

import flows.retrain  # noqa: F401  # whose heartbeats these are
from flows.server import clock


class Server(HTTPServer):
    """A server whose clock is `ahead` of this machine's, and how often it was asked."""

    ahead = timedelta()
    asked = 0


class Handler(BaseHTTPRequestHandler):
    """Answers with its own time."""

    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response_only(200)
        self.send_header("Date", format_datetime(datetime.now(UTC) + self.server.ahead, usegmt=True))
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(clock, "_last_known", timedelta())
    monkeypatch.setattr(clock, "_until_s", 0.0)
    with Server(("127.0.0.1", 0), Handler) as own:
        threading.Thread(target=own.serve_forever, daemon=True).start()
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{own.server_port}/api"}):
            yield own
        own.shutdown()


def test_equal_clocks_have_no_difference(server: Server) -> None:
    assert clock.clock_difference() == timedelta()
    assert clock.clock_warning() == ""


@pytest.mark.parametrize(
    ("ahead_s", "side"), [(150, "behind"), (-150, "ahead of"), (7200, "behind"), (-7200, "ahead of")]
)
def test_the_difference_is_found_and_said(server: Server, ahead_s: int, side: str) -> None:
    server.ahead = timedelta(seconds=ahead_s)
    assert abs(clock.server_time() - datetime.now(UTC) - server.ahead) < timedelta(seconds=2)
    assert f"{side} that of Prefect's server: set both by NTP" in clock.clock_warning()


def test_the_start_of_a_run_asks_once_and_the_next_heartbeat_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert clock.clock_difference() == timedelta()
    assert server.asked == 1
    server.ahead = timedelta(hours=2)
    later = time.monotonic() + 60
    monkeypatch.setattr(clock.time, "monotonic", lambda: later)
    assert clock.clock_difference() < timedelta(hours=-1)
    assert server.asked == 2


def test_while_the_server_is_away_the_last_difference_counts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ahead = timedelta(hours=2)
    known = clock.clock_difference()
    monkeypatch.setattr(clock, "_until_s", 0.0)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        assert clock.clock_difference() == known


def test_heartbeats_alone_carry_the_time_of_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(clock, "emit_event", lambda event, **fields: sent.append((event, fields)))
    server.ahead = timedelta(hours=2)
    for name in ("prefect.flow-run.heartbeat", "another"):
        prefect.flow_engine.emit_event(name, resource={})
    (_, beat), (_, other) = sent
    assert abs(beat["occurred"] - datetime.now(UTC) - server.ahead) < timedelta(seconds=2)
    assert "occurred" not in other

"""The Prefect server: who may use that of one run, when there is none, and addresses that are not its API."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_URL,
    get_current_settings,
    temporary_settings,
)

from flows.server import own as server
from flows.server.configured import refuse_non_api_url
from params import EvergreenError
from trainer.runtime.lifetime import stop_process_group


def test_only_the_process_that_started_the_server_can_use_it(tmp_path, make_prefect_home, monkeypatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(make_prefect_home()))
    started = server.OwnPrefectServer(tmp_path / "log")
    try:
        with started.used(), get_client(sync_client=True) as client:
            client.api_version()
            assert httpx.get(f"{started.url}/version", trust_env=False).status_code == 401
            flow = httpx.post(f"{started.url}/flows/", json={"name": "retrain"}, trust_env=False)
            assert flow.status_code == 401
            command = Path(f"/proc/{started.process.pid}/cmdline").read_bytes()
            secret = get_current_settings().api.auth_string.get_secret_value()
            assert secret.encode() not in command
            assert secret not in started.log_file.read_text()
    finally:
        stop_process_group(started.process, 0)


def test_no_server_is_needed_where_a_profile_or_the_environment_names_one(monkeypatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with temporary_settings({PREFECT_API_URL: None}):
        assert server.is_own_server_needed()
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        assert not server.is_own_server_needed()
    monkeypatch.delenv("PREFECT_API_URL")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert not server.is_own_server_needed()


@pytest.mark.parametrize(
    ("path", "status", "body", "is_api"),
    [
        ("", 200, b"<html>", False),
        ("/", 404, b'{"detail":"Not Found"}', False),
        ("/prefect", 200, b"<html>", False),
        ("/v1", 200, b"true", True),
        ("/v1", 401, b"", True),
    ],
)
def test_an_address_without_api_is_named_unless_an_api_answers_there(path, status, body, is_api) -> None:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Pages) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{pages.server_port}"
        try:
            with (
                contextlib.nullcontext() if is_api else pytest.raises(EvergreenError, match="/api is missing") as raised
            ):
                refuse_non_api_url(address.replace("//", "//me:secret@") + path)
            if raised:
                assert raised.value.fix == f"export PREFECT_API_URL={address}{path.rstrip('/')}/api"
        finally:
            pages.shutdown()


def test_an_address_where_nothing_answers_is_left_to_prefect() -> None:
    for address in ("http://127.0.0.1:9", "no address", "http://[::1"):
        refuse_non_api_url(address)

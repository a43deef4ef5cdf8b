"""The Prefect server: when that of one run prepares its database, when there is none, and addresses that are not its API."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_API_URL,
    PREFECT_HOME,
    get_current_settings,
    temporary_settings,
)

from flows.server import own as server
from flows.server.configured import require_api
from params import EvergreenError
from trainer.runtime.lifetime import stop_group


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """The database of a server that has run."""
    path = tmp_path / "prefect.db"
    change(path, "CREATE TABLE alembic_version (version_num TEXT)", "INSERT INTO alembic_version VALUES ('one')")
    change(path, "CREATE TABLE block_type (name TEXT)", "INSERT INTO block_type VALUES ('secret')")
    with temporary_settings(
        {PREFECT_HOME: tmp_path, PREFECT_API_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{path}"}
    ):
        yield path


def change(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_databaseis_prepared_for_the_version_of_prefect_that_prepared_it(database, monkeypatch) -> None:
    assert not server.is_prepared()
    server._note().write_text(server._state())
    assert server.is_prepared()
    monkeypatch.setattr("prefect.__version__", "99")
    assert not server.is_prepared()


@pytest.mark.parametrize("statement", ["UPDATE alembic_version SET version_num = 'two'", "DELETE FROM block_type"])
def test_changed_database_is_prepared_again(database, statement) -> None:
    server._note().write_text(server._state())
    change(database, statement)
    assert not server.is_prepared()


@pytest.mark.parametrize("content", [None, b"", b"no database, but more than a hundred bytes of something else" * 9])
def test_missing_or_damaged_database_is_prepared_again(database, content) -> None:
    server._note().write_text(server._state())
    database.unlink() if content is None else database.write_bytes(content)
    assert not server.is_prepared()


def test_only_the_process_that_started_the_server_can_use_it(tmp_path, make_prefect_home, monkeypatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(make_prefect_home()))
    started = server.Server(tmp_path / "log")
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
        stop_group(started.process, 0)


def test_no_server_starts_where_a_profile_names_one() -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        server._serve(port=0)


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
                require_api(address.replace("//", "//me:secret@") + path)
            if raised:
                assert raised.value.fix == f"export PREFECT_API_URL={address}{path.rstrip('/')}/api"
        finally:
            pages.shutdown()


def test_an_address_where_nothing_answers_is_left_to_prefect() -> None:
    for address in ("http://127.0.0.1:9", "no address", "http://[::1"):
        require_api(address)

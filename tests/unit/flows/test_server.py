"""The Prefect server: who may use that of one run, when there is none, and addresses that are not its API."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_URL,
    get_current_settings,
    temporary_settings,
)
from prefect.utilities.urls import url_for

from flows.server import own as server
from flows.server.configured import refuse_non_api_url
from params import EvergreenError, StorageError, TransientError
from tests.support import forked
from trainer.runtime.lifetime import stop_process_group


def asleep(*_: Any) -> subprocess.Popen[bytes]:
    """A server that never answers."""
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are forked; what they import takes five seconds each."""
    monkeypatch.setattr("sys.executable", forked.python())


def test_each_server_is_for_the_process_that_started_it_and_has_a_database_that_no_other_one_uses(
    tmp_path, make_prefect_home, monkeypatch, forks
) -> None:
    home = make_prefect_home()
    monkeypatch.setenv("PREFECT_HOME", str(home))
    theirs = f"sqlite+aiosqlite:///{home}/prefect.db"
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", theirs)  # of a server that stays
    before = (home / "prefect.db").read_bytes()
    shutil.copy(home / "prefect.db", home / "evergreen/runs-2.db")
    both = [server.OwnPrefectServer(tmp_path / name) for name in ("one", "two")]
    try:
        for number, started in enumerate(both):
            with started.used(), get_client(sync_client=True) as client:
                client.create_flow_from_name(f"flow-{number}")
                assert [flow.name for flow in client.read_flows()] == [f"flow-{number}"]
                assert url_for("flow-run", obj_id="1") is None, "its address leads nowhere when it has ended"
                if not number:
                    _is_closed_to_others(started)
    finally:
        for started in both:
            stop_process_group(started.process, 0)
    assert (home / "prefect.db").read_bytes() == before


def _is_closed_to_others(started: server.OwnPrefectServer) -> None:
    assert httpx.get(f"{started.url}/version", trust_env=False).status_code == 401
    assert httpx.post(f"{started.url}/flows/", json={"name": "retrain"}, trust_env=False).status_code == 401
    command = Path(f"/proc/{started.process.pid}/cmdline").read_bytes()
    secret = get_current_settings().api.auth_string.get_secret_value()
    assert secret.encode() not in command
    assert secret not in started.log_file.read_text()


def test_a_server_that_does_not_start_says_how_long_was_waited_and_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(server, "_STARTUP_S", 0.3)
    monkeypatch.setattr(server.child_process, "start_python_module", asleep)
    slow = server.OwnPrefectServer(tmp_path / "log")
    with pytest.raises(TransientError, match="has not answered within 0 s, without a word") as raised, slow.used():
        pass
    assert "when other programs leave this machine some time" in raised.value.fix
    slow.process.kill()
    slow.process.wait()
    slow.log_file.write_text("starting\nno space left\n")
    with (
        pytest.raises(TransientError, match=r"ended with status -9 after 0 s, .*: no space left") as raised,
        slow.used(),
    ):
        pass
    assert str(slow.log_file) in raised.value.fix


def test_a_home_that_cannot_be_made_is_named_with_its_variable(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(server.child_process, "start_python_module", asleep)
    started = server.OwnPrefectServer(tmp_path / "log")
    home = get_current_settings().model_copy(update={"home": tmp_path / "file/home"})
    monkeypatch.setattr("prefect.settings.get_current_settings", lambda: home)
    with (
        pytest.raises(StorageError, match="file/home/evergreen: cannot be made: Not a directory") as raised,
        started.used(),
    ):
        pass
    started.stop()
    assert raised.value.fix.startswith("set PREFECT_HOME to a folder")


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

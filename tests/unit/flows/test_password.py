"""The password of the Prefect server in the file .env."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from dotenv import dotenv_values
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.cli import main
from flows.server import configured, password
from params import EvergreenError
from tests.support.project import ROOT

SHOW = """
from prefect.settings import get_current_settings as settings
print(settings().api.auth_string.get_secret_value() == settings().server.api.auth_string.get_secret_value())
print(settings().api.auth_string.get_secret_value())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(password.CLIENT, raising=False)
    return tmp_path


def test_prefect_and_we_read_the_password_that_only_its_owner_can_read(folder, capsys) -> None:
    assert password.read_client_credentials() is None
    assert main(["password"]) == os.EX_OK
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env |= {"PREFECT_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    shown = subprocess.run([sys.executable, "-c", SHOW], env=env, check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["True", password.read_client_credentials()]
    assert (folder / ".env").stat().st_mode & 0o777 == 0o600
    assert password.read_client_credentials() not in capsys.readouterr().out


def test_who_has_opened_the_file_before_does_not_see_the_password(folder) -> None:
    (folder / ".env").write_text("A=1\n")
    with (folder / ".env").open() as earlier:
        password.add_password_to_dotenv()
        assert earlier.read() == "A=1\n"


def test_each_password_is_another_one() -> None:
    assert password.generate_credentials() != password.generate_credentials()
    assert len(password.generate_credentials()) > 40


def test_what_is_in_the_file_stays(folder) -> None:
    file = folder / ".env"
    file.write_text("PREFECT_LOGGING_LEVEL=DEBUG")
    file.chmod(0o644)
    password.add_password_to_dotenv()
    made = file.read_text()
    assert made.splitlines()[0] == "PREFECT_LOGGING_LEVEL=DEBUG"
    assert len(made.splitlines()) == 3
    assert file.stat().st_mode & 0o777 == 0o600
    assert password.add_password_to_dotenv() is False
    assert file.read_text() == made
    assert [path.name for path in folder.iterdir()] == [".env"]


@pytest.mark.parametrize("lines", ["{0}=\n{1}=\n", "{0}\n", "{1}", "{0}=''\n", "# {0}=a:b\n", "A=\u00e4\r\nB=2\r\n"])
def test_a_name_without_a_value_is_no_password(folder, lines) -> None:
    before = lines.format(password.SERVER, password.CLIENT).encode()
    (folder / ".env").write_bytes(before)
    assert password.add_password_to_dotenv() is True
    assert (folder / ".env").read_bytes().startswith(before)
    values = dotenv_values(folder / ".env")
    assert values[password.SERVER] == values[password.CLIENT] == password.read_client_credentials() != ""


@pytest.mark.parametrize(("has", "lacks"), [(password.SERVER, password.CLIENT), (password.CLIENT, password.SERVER)])
@pytest.mark.parametrize("other", ["", "{}\n", "{}=\n"])
def test_a_password_for_one_side_only_is_an_error(folder, capsys, has, lacks, other) -> None:
    content = f"{has}=me:s3cret\n{other.format(lacks)}"
    (folder / ".env").write_text(content)
    assert main(["password"]) != os.EX_OK
    error = capsys.readouterr().err
    assert f"has a value of {has}, but none of {lacks}" in error
    assert f"add `{lacks}=`" in error
    assert "s3cret" not in error
    assert (folder / ".env").read_text() == content


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o640, 0o640), (0o600, 0o600), (0o604, 0o600)])
def test_not_all_users_can_read_a_password_that_is_kept(folder, capsys, before, after) -> None:
    password.add_password_to_dotenv()
    content = (folder / ".env").read_text()
    (folder / ".env").chmod(before)
    assert main(["password"]) == os.EX_OK
    assert (folder / ".env").stat().st_mode & 0o777 == after
    assert ("every user of this machine could read it" in capsys.readouterr().out) == (before != after)
    assert (folder / ".env").read_text() == content


@pytest.mark.parametrize("content", ["A=1\n", None])
def test_a_link_stays_one(folder, content) -> None:
    (folder / "shared").mkdir()
    if content:
        (folder / "shared/env").write_text(content)
    (folder / ".env").symlink_to("shared/env")
    assert password.add_password_to_dotenv() is True
    assert (folder / ".env").is_symlink()
    assert (folder / "shared/env").read_text().startswith(content or password.SERVER)
    assert (folder / "shared/env").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (folder / "shared").iterdir()] == ["env"]


def test_the_environment_outranks_the_file(monkeypatch) -> None:
    password.add_password_to_dotenv()
    monkeypatch.setenv(password.CLIENT, "me:secret")
    assert password.read_client_credentials() == "me:secret"


def test_unreadable_file_is_an_error(folder) -> None:
    (folder / ".env").write_bytes(b"\xff\xfe")
    with pytest.raises(EvergreenError, match="cannot be read"):
        password.read_client_credentials()


@pytest.mark.parametrize(("status", "is_open"), [(200, True), (401, False), (403, False), (404, False), (None, False)])
def test_a_server_without_a_password_is_named(status, is_open) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/version"
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.handle_request, daemon=True)
        url = f"http://127.0.0.1:{served.server_port if status else 9}/api"
        if status:
            thread.start()
        with temporary_settings({PREFECT_API_URL: url}):
            assert configured.answers_without_password() is is_open


def test_git_ignores_it() -> None:
    done = subprocess.run(["git", "check-ignore", ".env", ".env.part"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == [".env", ".env.part"]

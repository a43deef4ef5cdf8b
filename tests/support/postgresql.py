"""A PostgreSQL server for a test, started from the programs that the system has.

    with postgresql() as database:
        environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database.url()

Prefect needs the extension pg_trgm, which Debian's package has. The wheels on PyPI that bring a server do not have it, so there
is no extra for them: without PostgreSQL, the test is skipped. PostgreSQL refuses to run as root, so root starts it as another
user. The server listens on a socket in its own folder only, and trusts whoever can open that.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import wait_for

PROGRAMS = ("initdb", "postgres", "psql", "pg_dump", "pg_restore", "createdb")
_TIMEOUT_S = 60


@contextlib.contextmanager
def postgresql() -> Iterator[Database]:
    """Run a server with an empty database `prefect`; skip the test if there is none that Prefect can use."""
    programs = find_programs()
    if programs is None:
        pytest.skip(f"no folder has all of PostgreSQL's programs: {', '.join(PROGRAMS)}")
    folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir="/tmp"))  # a socket's path has at most 107 characters
    database = Database(programs, folder)
    try:
        database.start()
        if not database.query("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_trgm'"):
            pytest.skip(f"the PostgreSQL in {programs} has no extension pg_trgm, which Prefect needs")
        database.run("createuser", "prefect")
        database.run("createdb", "--owner=prefect", "prefect")
        yield database
    finally:
        database.stop()
        shutil.rmtree(folder)


def start_if_installed(opened: contextlib.ExitStack) -> dict[str, str]:
    """What lets Prefect use a server that runs until `opened` closes; nothing, which means SQLite, where PostgreSQL is not installed.

    On SQLite, a busy Prefect server now and then loses an event, and what should have followed from it.
    """
    if find_programs() is None:
        return {}
    return {"PREFECT_SERVER_DATABASE_CONNECTION_URL": opened.enter_context(postgresql()).url()}


def find_programs() -> Path | None:
    """The folder with all programs of the newest PostgreSQL in /usr/lib/postgresql, else of the one on the path."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    folders = [*installed, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((folder for folder in folders if all((folder / name).exists() for name in PROGRAMS)), None)


class Database:
    """A server in a folder of its own, with the role and the database `prefect` of docs/operation.md."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._owner = _owner()
        self._server: subprocess.Popen[bytes] | None = None
        if self._owner:
            os.chown(folder, self._owner["user"], self._owner["group"])

    def file(self, name: str) -> Path:
        """A file in the server's folder, which PostgreSQL's programs can write."""
        return self._folder / name

    def url(self, name: str = "prefect") -> str:
        """A database for Prefect, as the role `prefect`."""
        return f"postgresql+asyncpg://prefect@/{name}?host={self._folder}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        data = self._folder / "data"
        if not data.exists():
            self.run(
                "initdb", f"--pgdata={data}", "--username=postgres", "--encoding=UTF8", "--no-sync", "--auth=trust"
            )
        settings = (f"unix_socket_directories={self._folder}", "listen_addresses=", "fsync=off")
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._programs / "postgres", "-D", data, *(word for text in settings for word in ("-c", text))],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._owner,
            )
        wait_for(self._answers, "PostgreSQL", _TIMEOUT_S)

    def stop(self) -> None:
        """Stop the server, if it runs; its connections are closed."""
        if self._server:
            self._server.send_signal(signal.SIGINT)
            self._server.wait(_TIMEOUT_S)
            self._server = None

    def query(self, statement: str, name: str = "postgres") -> list[str]:
        """Run a statement as superuser; its rows, with `|` between the columns."""
        options = ("--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "--set=ON_ERROR_STOP=1")
        return self.run("psql", *options, f"--dbname={name}", f"--command={statement}").splitlines()

    def run(self, program: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as superuser; its output, or a failed test with it."""
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            env={**os.environ, "PGHOST": str(self._folder), "PGUSER": "postgres"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            **self._owner,
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}"
        return done.stdout

    def _answers(self) -> bool:
        assert self._server
        assert self._server.poll() is None, (self._folder / "log").read_text(encoding="utf-8")
        with contextlib.suppress(AssertionError):
            return self.query("SELECT 1") == ["1"]
        return False


def _owner() -> dict[str, Any]:
    """What `subprocess` needs to run a program as another user, if this is root."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

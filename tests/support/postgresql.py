"""A PostgreSQL server for a test, started from the programs that the system has.

    with postgresql.running() as database:
        environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database.url

Prefect needs the extension pg_trgm. Debian's package has it, and the wheels on PyPI that bring a server do not; without a
suitable PostgreSQL, the test is skipped. PostgreSQL refuses to run as root, so root starts it as another user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import free_port

_PROGRAMS = ("initdb", "pg_ctl", "psql", "pg_dump", "pg_restore", "createdb", "dropdb")
_USERS = ("postgres", "nobody")
_TIMEOUT_S = 60


@contextlib.contextmanager
def running() -> Iterator[Database]:
    """Run a server with an empty database; skip the test if there is no PostgreSQL for it."""
    programs = find_programs()
    if programs is None:
        pytest.skip(f"no folder of PostgreSQL's programs ({', '.join(_PROGRAMS)}) is installed")
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
    database = Database(programs, folder)
    try:
        database.initialize()
        database.start()
        if database.query("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_trgm'") != ["1"]:
            pytest.skip(f"{programs} has no extension pg_trgm, which Prefect needs")
        database.create()
        yield database
    finally:
        database.stop("immediate")
        shutil.rmtree(folder)


def find_programs() -> Path | None:
    """The folder with all programs of the newest PostgreSQL in /usr/lib/postgresql, else of the one on the path."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    folders = [*installed, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((folder for folder in folders if all((folder / name).exists() for name in _PROGRAMS)), None)


class Database:
    """A server with the database `prefect` of a user `prefect`, as docs/operation.md creates them."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._data = folder / "data"
        self._port = free_port()
        self._password = secrets.token_hex(8)
        self._owner = _owner()
        if self._owner:
            os.chown(folder, self._owner["user"], self._owner["group"])

    @property
    def address(self) -> str:
        """The database for PostgreSQL's own programs."""
        return f"postgresql://prefect:{self._password}@127.0.0.1:{self._port}/prefect"

    @property
    def url(self) -> str:
        """The database for Prefect."""
        return self.address.replace("postgresql:", "postgresql+asyncpg:", 1)

    def initialize(self) -> None:
        """Make the server's folder: who reaches its socket may do all, others need a password."""
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync",
                  "--auth-local=trust", "--auth-host=scram-sha-256")  # fmt: skip

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1 -F"
        log = str(self._folder / "log")
        self._run("pg_ctl", "start", "-w", "-t", str(_TIMEOUT_S), "-D", str(self._data), "-l", log, "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server, if it runs: `fast` as for a restart, `immediate` as if it had crashed."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "-w", "-D", str(self._data), "-m", mode)

    def create(self) -> None:
        """Create the user and the empty database."""
        self.query(f"CREATE ROLE prefect LOGIN PASSWORD '{self._password}'")
        self._run("createdb", *self._local, "--owner=prefect", "prefect")

    def recreate(self) -> None:
        """Drop the database with all that is in it, and create it again."""
        self._run("dropdb", *self._local, "--force", "prefect")
        self._run("createdb", *self._local, "--owner=prefect", "prefect")

    def query(self, statement: str, database: str = "postgres") -> list[str]:
        """Run a statement as superuser; its rows, with `|` between the columns."""
        options = ("-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1")
        return self._run("psql", *self._local, "-d", database, *options, "-c", statement).splitlines()

    def program(self, name: str) -> str:
        """The path of one of PostgreSQL's programs."""
        return str(self._programs / name)

    @property
    def _local(self) -> tuple[str, ...]:
        return ("-h", str(self._folder), "-p", str(self._port), "-U", "postgres")

    def _run(self, name: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as the server's user; its output, or a failed test with it."""
        with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as the server that pg_ctl starts
            done = subprocess.run(
                [self.program(name), *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=2 * _TIMEOUT_S,
                **self._owner,
            )
            output.seek(0)
            text = output.read().decode()
        assert done.returncode == 0, f"{name} {' '.join(arguments)} ended with {done.returncode}\n{text}"
        return text


def _owner() -> dict[str, Any]:
    """What `subprocess` needs to run a program as another user, if this is root."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = next(known[name] for name in _USERS if name in known)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

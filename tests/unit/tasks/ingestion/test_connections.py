"""Errors that say that a server or the network is away, of every kind of library, and those that another try does not change."""

import errno
import http.client
import socket
import sqlite3
import urllib.error
from collections.abc import Iterator
from email.message import Message
from typing import Any

import asyncpg
import httpx
import pytest
import redis
import requests
import sqlalchemy.exc

from params import DataError, TransientError
from params.sections.data import RowsFromFunction
from tasks.ingestion.connections import is_connection_error
from tasks.ingestion.source import open_source


class Error(Exception):
    """As in each driver's module (DB-API, PEP 249)."""


class DatabaseError(Error):
    pass


class OperationalError(DatabaseError):
    pass


class ProgrammingError(DatabaseError):
    pass


class InterfaceError(Error):
    pass


class AdminShutdownError(OperationalError):
    sqlstate = "57P01"


class InvalidPasswordError(OperationalError):
    sqlstate = "28P01"


class Psycopg2Error(OperationalError):
    pgcode = "08006"


def answer(status: int) -> Any:
    request = httpx.Request("GET", "http://x")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def answer_to_requests(status: int) -> Any:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("no", response=response)


def caused_by(cause: BaseException, *, explicitly: bool) -> Exception:
    error = RuntimeError("the rows cannot be read")
    error.__cause__, error.__context__ = (cause if explicitly else None), cause
    return error


def locked() -> Exception:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


def invalidated() -> Exception:
    return sqlalchemy.exc.DBAPIError("select 1", {}, Error("lost"), connection_invalidated=True)


AWAY = [
    ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    ConnectionResetError(),
    BrokenPipeError(),
    TimeoutError(),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    OSError(errno.ESTALE, "Stale file handle"),
    urllib.error.URLError("timed out"),
    urllib.error.HTTPError("http://x", 503, "away", Message(), None),
    http.client.RemoteDisconnected("closed"),
    http.client.IncompleteRead(b""),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("closed"),
    requests.ConnectionError("refused"),
    requests.Timeout("slow"),
    redis.ConnectionError("refused"),
    asyncpg.CannotConnectNowError("starting up"),
    asyncpg.ConnectionDoesNotExistError("closed"),
    OperationalError("could not connect to server"),
    OperationalError(2003, "Can't connect to MySQL server"),
    OperationalError(1040, "Too many connections"),
    InterfaceError("connection already closed"),
    AdminShutdownError("terminating connection"),
    Psycopg2Error("server closed the connection"),
    sqlalchemy.exc.OperationalError("select 1", {}, OperationalError("server closed the connection unexpectedly")),
    sqlalchemy.exc.InterfaceError("select 1", {}, InterfaceError("connection is closed")),
    sqlalchemy.exc.TimeoutError("QueuePool limit"),
    sqlalchemy.exc.DisconnectionError("gone"),
    invalidated(),
    locked(),
    answer(502),
    answer(429),
    answer_to_requests(503),
    caused_by(ConnectionRefusedError(), explicitly=True),
]
OTHERS = [
    ValueError("no number"),
    KeyError("id"),
    FileNotFoundError(errno.ENOENT, "no file"),
    PermissionError(errno.EACCES, "denied"),
    OSError(errno.ENOSPC, "full"),
    urllib.error.HTTPError("http://x", 404, "gone", Message(), None),
    ProgrammingError("syntax error"),
    OperationalError("password authentication failed"),
    OperationalError(1054, "Unknown column"),
    InvalidPasswordError("no"),
    sqlite3.OperationalError("no such table: rows"),
    sqlite3.OperationalError("unable to open database file"),
    sqlalchemy.exc.OperationalError("select 1", {}, sqlite3.OperationalError("no such table: rows")),
    sqlalchemy.exc.ProgrammingError("select 1", {}, ProgrammingError("syntax error")),
    asyncpg.UndefinedTableError("no table"),
    answer(404),
    answer_to_requests(401),
    caused_by(ConnectionRefusedError(), explicitly=False),
]


def rows(error: Any) -> Iterator[dict[str, Any]]:
    yield {"text": "a"}
    raise error


def read(error: Exception) -> None:
    arguments = {"error": error}
    source = open_source(RowsFromFunction(kind="function", function=f"{__name__}:rows", arguments=arguments))
    for _ in source.batches("train"):
        pass


@pytest.mark.parametrize("error", AWAY, ids=repr)
def test_what_is_away_is_worth_another_try_when_a_function_reads_from_it(error: Exception) -> None:
    assert is_connection_error(error)
    with pytest.raises(TransientError, match=r"test_connections:rows row 1: the function raised \w+"):
        read(error)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_are_of_the_function_or_its_data(error: Exception) -> None:
    assert not is_connection_error(error)
    with pytest.raises(DataError, match="fix the function, or the data that it reads"):
        read(error)

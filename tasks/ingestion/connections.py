"""Which errors say that a server or the network is away: worth another try, whatever library raises them.

A source may use any driver or client, and none of them is a dependency. So an error counts by its builtin type and number, by what its
driver says of it, or by the name of its class.
"""

from __future__ import annotations

import errno
import re
import sqlite3
import urllib.error
from collections.abc import Iterator
from typing import Final

_BUILTIN: Final = (ConnectionError, TimeoutError, urllib.error.URLError)
_NETWORK: Final = {
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.EPIPE,
    errno.EREMOTEIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_DATABASE: Final = {"OperationalError", "InterfaceError"}
"""DB-API's names for what is not in the hands of who wrote the query; some drivers also use them for other mistakes."""
_CLIENTS: Final = {
    "AutoReconnect",  # pymongo
    "ClientConnectionError",  # aiohttp
    "ConnectTimeoutError",  # botocore, urllib3
    "ConnectionClosedError",  # botocore
    "ConnectionError",  # requests, redis, elasticsearch
    "DisconnectionError",  # sqlalchemy
    "EndpointConnectionError",  # botocore
    "HTTPClientError",  # botocore
    "IncompleteRead",  # http.client
    "RemoteDisconnected",  # http.client
    "ServiceUnavailable",  # google, neo4j
    "Timeout",  # requests
    "TimeoutError",  # sqlalchemy, redis
    "TransportError",  # httpx, httpx2, google
    "gaierror",  # socket
}
_LATER: Final = {408, 425, 429}
"""Answers over HTTP, beside all from 500 on, that may be another one later."""
_SQLSTATES: Final = ("08", "53", "57P", "58")
"""How codes of the SQL standard begin that say so; all others are about the query or the account."""
_MYSQL: Final = {1040, 1042, 1043, 1053, 1077, 1129, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 3024, 4031}
"""Numbers of MySQL's and MariaDB's servers that say so; those from 2000 to 2999 are of their clients, about the connection."""
_OF_USER: Final = re.compile(
    r"authentication|password|access denied|permission|privilege|does not exist|no such|unknown (database|column|table)|syntax",
    re.IGNORECASE,
)
"""Words of a driver that gives no code, about what no later try changes."""


def is_connection_error(error: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, says that something is away for now."""
    return any(_is_away(one) for one in _with_causes(error))


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        original = getattr(error, "orig", None)  # the driver's, in an error of SQLAlchemy
        error = original if isinstance(original, BaseException) else error.__cause__


def _is_away(error: BaseException) -> bool:
    if (status := _http_status(error)) is not None:
        return status in _LATER or status >= 500
    names = {kind.__name__ for kind in type(error).__mro__}
    said = _said_by_database(error)
    if said is None and names & _DATABASE:
        said = _is_databases_connection(error)
    if said is not None:
        return said
    is_networks = isinstance(error, OSError) and error.errno in _NETWORK
    return is_networks or isinstance(error, _BUILTIN) or bool(names & _CLIENTS)


def _said_by_database(error: BaseException) -> bool | None:
    """Return what a database's error says of the connection by a code; None if it has none."""
    if getattr(error, "connection_invalidated", False):
        return True
    if isinstance(error, sqlite3.Error):  # it has no server: another process may hold the file
        return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state.startswith(_SQLSTATES) if isinstance(state, str) else None


def _http_status(error: BaseException) -> int | None:
    """Return with which status a server has answered, as the clients of HTTP say it."""
    response = getattr(error, "response", None)
    code = error.code if isinstance(error, urllib.error.HTTPError) else getattr(response, "status_code", None)
    return code if isinstance(code, int) else None


def _is_databases_connection(error: BaseException) -> bool:
    """Whether an OperationalError or InterfaceError is about the connection, as far as its driver says what it is about."""
    if isinstance(getattr(error, "orig", None), BaseException):
        return False  # SQLAlchemy's: the driver's own is the next one
    number = error.args[0] if error.args else None
    if isinstance(number, int):
        return number in _MYSQL or 2000 <= number < 3000
    return not _OF_USER.search(str(error))

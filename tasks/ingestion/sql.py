"""Rows of a database query, streamed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import sqlalchemy
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from params import DataError, EvergreenError, RecipeError, TransientError
from params.foundation.installation import install_module
from params.sections.data import RowsFromSql
from tasks.ingestion.batches import BATCH_ROWS, AddressedRows, Batches, to_batches
from tasks.ingestion.connections import is_connection_error

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET TRANSACTION READ ONLY",
    "mysql": "START TRANSACTION READ ONLY",
    "mariadb": "START TRANSACTION READ ONLY",
    "oracle": "SET TRANSACTION READ ONLY",
}
"""Statements after which a database refuses to write, until the transaction ends."""
_WRITING = re.compile(
    r"\b(insert|update|delete|merge|into|drop|truncate|alter|create|grant|exec|call)\b", re.IGNORECASE
)
"""Words that a query on another database may not contain: to tell code from text takes that database's parser."""
_TRANSIENT = re.compile(
    r"could not connect|connection refused|can't connect|timed? ?out|could not translate host|name resolution|unreachable"
    r"|too many connections|starting up|shutting down|connection reset|server closed|gone away|lost connection|locked",
    re.IGNORECASE,
)


class SqlSource:
    """A database query; it runs when the first row is read.

    Raises:
        RecipeError: the URL is malformed, names a variable that is not set, or needs a driver that is not installed.
    """

    splits: Sequence[str] = ("train",)

    def __init__(self, source: RowsFromSql, root: Path = Path()) -> None:
        self._query = source.query
        url = _parse(source.url)
        _check_query(source.query, url.get_backend_name())
        self._file: Path | None = None
        if url.get_backend_name() == "sqlite" and url.database and not url.database.startswith((":", "file:")):
            self._file = root / url.database
            url = url.set(database=str(self._file))
        self._url = url
        try:
            self._engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        except NoSuchModuleError:
            fix = "write postgresql://, mysql://, sqlite:/// or another dialect that is installed"
            raise RecipeError.at("data.source.url", f"there is no SQLAlchemy dialect `{url.drivername}`", fix) from None
        except ArgumentError as error:
            raise self._failure(error) from None
        except (TypeError, ValueError) as error:
            raise self._option_error(error) from None
        except ImportError as error:
            what = f"the driver of `{url.drivername}` is not installed"
            raise RecipeError.at("data.source.url", what, install_module(error.name or url.drivername)) from None

    @cached_property
    def revision(self) -> str:
        """SHA-256 of the query and of the URL without its password; a change of the tables does not change it."""
        url = self._url.set(password=None).render_as_string(hide_password=True)
        return f"sha256:{hashlib.sha256(json.dumps([url, self._query]).encode()).hexdigest()}"

    def batches(self, split: str) -> Batches:
        return to_batches(self._rows())

    def indexes(self, split: str) -> None:
        return None

    def _rows(self) -> AddressedRows:
        if self._file is not None and not self._file.is_file():  # SQLite would create an empty one
            raise DataError(str(self._file), "there is no such database file", "check the path in data.source.url")
        options = {"stream_results": True, "yield_per": BATCH_ROWS, "no_parameters": True}
        try:
            with self._engine.connect() as connection:
                if read_only := _READ_ONLY.get(self._url.get_backend_name()):
                    connection.exec_driver_sql(read_only)  # before stream_results, which would make it a cursor
                result = connection.execution_options(**options).exec_driver_sql(self._query)
                names = list(result.keys())
                twice = sorted(name for name, count in Counter(names).items() if count > 1)
                if twice:
                    what = f"several columns are called {', '.join(f'`{name}`' for name in twice)}"
                    raise DataError.at("data.source.query", what, "give each column its own name with AS")
                for index, row in enumerate(result):
                    yield f"data.source.query row {index}", dict(zip(names, row, strict=True))
        except SQLAlchemyError as error:
            raise self._failure(error) from None  # a chained error could show the password
        except OSError as error:  # of a driver that does not hide those of the network
            raise self._network_error(error) from None
        except (TypeError, ValueError) as error:  # the driver raises them for options of the URL
            raise self._option_error(error) from None

    def _failure(self, error: SQLAlchemyError) -> EvergreenError:
        message = self._without_password(str(error.orig if isinstance(error, DBAPIError) else error)).strip()
        if is_connection_error(error) or _TRANSIENT.search(message):
            where = self._url.render_as_string(hide_password=True)
            return TransientError(where, f"the database cannot be reached: {message}", "run the stage again later")
        return DataError.at(
            "data.source.query", f"the database refuses: {message}", "fix the query, or the account's permissions"
        )

    def _network_error(self, error: OSError) -> EvergreenError:
        where, message = self._url.render_as_string(hide_password=True), self._without_password(str(error))
        if is_connection_error(error):
            return TransientError(where, f"the database cannot be reached: {message}", "run the stage again later")
        return DataError.at("data.source.url", f"the driver cannot open it: {message}", "correct the URL")

    def _option_error(self, error: Exception) -> RecipeError:
        what = f"the driver refuses the options in the URL: {self._without_password(str(error))}"
        return RecipeError.at("data.source.url", what, "correct or remove the options after `?`")

    def _without_password(self, message: str) -> str:
        password = self._url.password or ""
        for secret in filter(None, (password, quote(password, safe=""))):
            message = message.replace(secret, "***")
        return message


def _check_query(query: str, database: str) -> None:
    """Refuse what is not one SELECT. A `;` could begin a second statement, which could end the read-only transaction."""
    statement = query.rstrip("; \r\n\t")
    words = re.findall(r"\w+", re.sub(r"--[^\n]*\n|/\*.*?\*/", " ", statement.lower(), flags=re.DOTALL))
    if not words or words[0] not in ("select", "with", "values"):
        raise RecipeError.at("data.source.query", "is not a SELECT", "write one SELECT")
    if ";" in statement:
        fix = "write one SELECT; for `;` in a text write char(59) or chr(59)"
        raise RecipeError.at("data.source.query", "holds `;` before its end", fix)
    writing = _WRITING.search(query)
    if database not in _READ_ONLY and writing:
        what = f"holds the word `{writing[0].lower()}`, and {database} has no read-only transactions"
        raise RecipeError.at(
            "data.source.query", what, "write one SELECT; if a name or text needs it, select from a view"
        )


def _parse(template: str) -> sqlalchemy.URL:
    """Return the URL with the environment's values in place of `${VARIABLES}`."""
    missing = sorted({name for name in _VARIABLE.findall(template) if name not in os.environ})
    if missing:
        what = f"environment variables are not set: {', '.join(missing)}"
        raise RecipeError.at("data.source.url", what, f"set them before the run, for example `export {missing[0]}=...`")
    if _VARIABLE.fullmatch(template):
        text = os.environ[template[2:-1]]
    else:  # user and password may hold any character; a URL needs some of them as %XX
        start, at, end = template.rpartition("@")
        text = _VARIABLE.sub(lambda m: quote(os.environ[m[1]], safe=""), start) + at
        text += _VARIABLE.sub(lambda m: os.environ[m[1]], end)
    try:
        return sqlalchemy.make_url(text)
    except (ArgumentError, ValueError):  # both would show the URL, with its password
        fix = "write dialect://user:${PASSWORD}@host/database, or sqlite:///file.db"
        raise RecipeError.at("data.source.url", "is not a valid SQLAlchemy URL", fix) from None

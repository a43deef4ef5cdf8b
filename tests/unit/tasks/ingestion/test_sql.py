"""Databases as a source, tested with SQLite."""

import errno
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from params import DataError, RecipeError, TransientError
from params.sections.data import RowsFromSql
from tasks.ingestion import sql
from tasks.ingestion.source import open_source


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "data.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("create table notes (id integer primary key, text text, score real, other)")
        rows = [(i, f"100% of :x {i}", None if i else 0.5, None) for i in range(1300)]
        connection.executemany("insert into notes values (?, ?, ?, ?)", rows)
    connection.close()
    return path


def query(root: Path, statement: str, url: str = "sqlite:///data.db") -> list[dict[str, Any]]:
    source = open_source(RowsFromSql(kind="sql", url=url, query=statement), root)
    return [row for batch in source.batches("train") for row in batch.rows.to_pylist()]


def test_query_returns_rows_in_batches(database: Path) -> None:
    statement = "select id, text, score from notes where text like '100% of :x%' order by id desc"
    source = open_source(RowsFromSql(kind="sql", url="sqlite:///data.db", query=statement), database.parent)
    batches = list(source.batches("train"))
    assert [len(batch.rows) for batch in batches] == [512, 512, 276]
    assert batches[0].rows.to_pylist()[0] == {"id": 1299, "text": "100% of :x 1299", "score": None}
    assert batches[1].address(0) == "data.source.query row 512"
    assert source.splits == ("train",)


def test_statement_is_passed_to_the_driver_unchanged(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers with %s parameters fail on a bare % when they get parameters, even an empty list."""
    seen: list[str] = []
    execute = SQLiteDialect_pysqlite.do_execute_no_params

    def spy(self: Any, cursor: Any, statement: str, context: Any = None) -> None:
        seen.append(statement)
        execute(self, cursor, statement, context)

    monkeypatch.setattr(SQLiteDialect_pysqlite, "do_execute_no_params", spy)
    statement = "select id from notes where text like '100% of :x 7'"
    assert query(database.parent, statement) == [{"id": 7}]
    assert seen == [statement]


def test_url_expands_environment_variables(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDER", str(database.parent))
    monkeypatch.setenv("WHOLE", f"sqlite:///{database}")
    assert query(Path("elsewhere"), "select count(*) as n from notes", "sqlite:///${FOLDER}/data.db") == [{"n": 1300}]
    assert query(Path("elsewhere"), "select count(*) as n from notes", "${WHOLE}") == [{"n": 1300}]


def test_missing_environment_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"data.source.url: environment variables are not set: NO_SUCH_VARIABLE"):
        query(tmp_path, "select 1", "postgresql://me:${NO_SUCH_VARIABLE}@host/db")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select * from nots", "data.source.query: the database refuses: no such table: nots"),
        ("select id, text, id from notes", "data.source.query: several columns are called `id`"),
    ],
)
def test_failing_query_is_an_error(database: Path, statement: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        query(database.parent, statement)
    assert message in str(caught.value)
    assert query(database.parent, "select count(*) as n from notes") == [{"n": 1300}]


NO_SELECT = "data.source.query: is not a SELECT"
TWO = "data.source.query: holds `;` before its end"
READ_ONLY = "attempt to write a readonly database"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("delete from notes", NO_SELECT),
        ("DROP TABLE notes", NO_SELECT),
        ("pragma query_only = off", NO_SELECT),
        ("vacuum into 'copy.db'", NO_SELECT),
        ("-- select\ndrop table notes", NO_SELECT),
        ("/* nothing */", NO_SELECT),
        ("select 1; drop table notes", TWO),
        (r"select E'\''; commit; drop table notes --'", TWO),
        ("with old as (select 1) delete from notes returning id", READ_ONLY),
    ],
)
def test_query_that_writes_is_refused(database: Path, statement: str, message: str) -> None:
    with pytest.raises((RecipeError, DataError), match=re.escape(message)):
        query(database.parent, statement)
    assert query(database.parent, "select count(*) as n from notes;\n") == [{"n": 1300}]


def test_names_and_texts_may_be_words_of_other_statements(database: Path) -> None:
    statement = "-- delete\nselect 'drop table' as \"update\" /* merge */ from notes limit 1"
    assert query(database.parent, statement) == [{"update": "drop table"}]


def test_database_without_read_only_transactions_gets_no_writing_word(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sql._READ_ONLY, "sqlite")
    for statement in ("select 1 DROP table notes", "with old as (select 1) delete from notes returning id"):
        with pytest.raises(RecipeError, match=r"holds the word `(drop|delete)`, and sqlite has no read-only"):
            query(database.parent, statement)
    assert query(database.parent, "select count(*) as n from notes") == [{"n": 1300}]


def test_missing_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.db: there is no such database file"):
        query(tmp_path, "select 1")
    assert not list(tmp_path.iterdir())


def test_locked_database_is_a_transient_error(database: Path) -> None:
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("begin exclusive")
    with pytest.raises(TransientError, match=r"cannot be reached: database is locked"):
        query(database.parent, "select * from notes", "sqlite:///data.db?timeout=0.01")
    other.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nodialect://me:s3cret@host/x", "there is no SQLAlchemy dialect `nodialect`"),
        ("not a url s3cret", "is not a valid SQLAlchemy URL"),
        ("mysql://me:s3cret@host:s3cret/x", "is not a valid SQLAlchemy URL"),
        ("mssql+pymssql://me:s3cret@host/x", "the driver of `mssql+pymssql` is not installed"),
    ],
)
def test_invalid_url_error_hides_the_password(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        query(tmp_path, "select 1", url)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


class Leaky(SQLiteDialect_pysqlite):
    """A server that repeats the password in its error messages."""

    supports_statement_cache = True

    def create_connect_args(self, url: sqlalchemy.URL) -> Any:
        return [url], {}

    def connect(self, url: sqlalchemy.URL) -> Any:
        raise sqlite3.OperationalError(f"{url.host}, {url.username}:{url.password}")


@pytest.mark.parametrize(
    ("host", "expected"), [("connection refused", TransientError), ("password authentication failed", DataError)]
)
def test_connection_error_hides_the_password(monkeypatch: pytest.MonkeyPatch, host: str, expected: type) -> None:
    registry.register("leaky", __name__, "Leaky")
    monkeypatch.setenv("DB_PASSWORD", "p@ss/w:rd")
    monkeypatch.setenv("DB_HOST", host)
    with pytest.raises(expected) as caught:
        query(Path(), "select 1", "leaky://me:${DB_PASSWORD}@${DB_HOST}/db")
    assert f"{host}, me:***" in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert "p@ss" not in str(error)
        error = error.__cause__
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host s3cret"), TransientError),
        (ConnectionRefusedError(errno.ECONNREFUSED, "s3cret"), TransientError),
        (OSError(errno.ENOENT, "no socket s3cret"), DataError),
    ],
    ids=repr,
)
def test_a_driver_may_raise_the_error_of_the_network_itself(
    monkeypatch: pytest.MonkeyPatch, error: OSError, expected: type
) -> None:
    def connect(*_: Any) -> Any:
        raise error

    registry.register("leaky", __name__, "Leaky")
    monkeypatch.setattr(Leaky, "connect", connect)
    with pytest.raises(expected) as caught:
        query(Path(), "select 1", "leaky://me:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


def test_query_revision_does_not_depend_on_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register("leaky", __name__, "Leaky")

    def revision(password: str, statement: str) -> str:
        monkeypatch.setenv("DB_PASSWORD", password)
        url = "leaky://me:${DB_PASSWORD}@host/db"
        return open_source(RowsFromSql(kind="sql", url=url, query=statement), tmp_path).revision

    assert revision("one", "select 1") == revision("two", "select 1") != revision("one", "select 2")

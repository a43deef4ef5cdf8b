"""Imported files, with the real DVC: what is asked, what is downloaded, and what a failure leaves."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import logging
import re
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.dvc_project import push as dvc_push
from flows.dvc_project import update as dvc_update
from flows.dvc_project.stage import run_action_for_exit_status
from flows.run import unwatched_sources
from params import DataError, EvergreenError, RecipeError, RemoteRefusedError, TransientError
from params.foundation import command_result
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tests.support import tiny

# pygtrie 2.5.0, which DVC asks whether a path lies in the output of another stage
# dvc_http 2.32.0, which does not close its sessions
pytestmark = [
    pytest.mark.filterwarnings("ignore:_NoneStep.value will soon raise:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:[Uu]nclosed .*:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*ClientSession.__del__:pytest.PytestUnraisableExceptionWarning"),
]
DVC_YAML = """\
stages:
  resolve: {foreach: [tiny], do: {cmd: cp recipe resolved, deps: [recipe], outs: [resolved]}}
  ingest: {foreach: [tiny], do: {cmd: wc data/rows.csv > raw, deps: [data/rows.csv], outs: [raw]}}
"""
DVC_YAML += "".join(f"  {stage}: {{foreach: [tiny], do: {{cmd: echo}}}}\n" for stage in STAGES[1:])


def shell(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def dvc(*arguments: str, folder: Path = Path()) -> None:
    """Run a command of DVC in this process, which starts no other that would import it."""
    from dvc.cli import main

    with contextlib.chdir(folder):
        assert main(list(arguments)) == 0


def git(*arguments: str, folder: Path) -> None:
    shell("git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments, folder=folder)


class Site(http.server.ThreadingHTTPServer):
    """A web server with one file, which can refuse."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.content, self.status, self.downloads = b"text\none\n", 200, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/rows.csv"

    def end(self) -> None:
        self.shutdown()
        self.server_close()


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_HEAD(self) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.send_header("ETag", hashlib.md5(self.server.content).hexdigest())
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.server.downloads += 1
        self.wfile.write(self.server.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose recipe refreshes data/rows.csv. The working directory."""
    made = tmp_path / "project"
    (made / "data").mkdir(parents=True)
    monkeypatch.chdir(made)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    source = {"kind": "files", "train": "data/rows.csv", "refresh": True}
    tiny.write(Path("params/tiny.yaml"), tiny.recipe({}) | {"data": {"source": source}})
    Path("dvc.yaml").write_text(DVC_YAML)
    Path("recipe").write_text("seed: 3\n")
    dvc("init", "--no-scm", "-q")
    return made


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.end()


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """Another DVC repository, with a file that DVC keeps there."""
    made = tmp_path / "registry"
    made.mkdir()
    git("init", "-q", "-b", "main", folder=made)
    dvc("init", "-q", folder=made)
    dvc("remote", "add", "-q", "-d", "storage", str(tmp_path / "registry-storage"), folder=made)
    publish(made, "text\none\n")
    return made


def publish(registry: Path, text: str) -> None:
    (registry / "rows.csv").write_text(text)
    dvc("add", "-q", "rows.csv", folder=registry)
    dvc("push", "-q", folder=registry)
    commit(registry)


def commit(registry: Path) -> None:
    git("add", "-A", folder=registry)
    git("commit", "-q", "--allow-empty", "-m", "rows", folder=registry)


def update() -> EvergreenError | None:
    """Update, as the flow does: the error that the command reports."""
    variable = command_result.preallocate_result_file(Path("result.json"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(*next(iter(variable.items())))
        status = run_action_for_exit_status(dvc_update.update_imported_files, "tiny")
    result = command_result.read_result_file(Path("result.json"))
    assert result
    assert status == (result.error.exit_code if result.error else 0)
    return result.error


def rows() -> str:
    return Path("data/rows.csv").read_text()


def test_a_file_of_a_web_server_is_downloaded_when_it_has_changed(root: Path, site: Site, capfd) -> None:
    dvc("import-url", site.url, "data/rows.csv")
    asked = site.downloads
    about = Path("data/rows.csv.dvc").read_text()
    assert update() is None
    assert "update:" not in capfd.readouterr().out, "nothing new"
    assert Path("data/rows.csv.dvc").read_text() == about
    assert site.downloads - asked == 1, "asks whether it is there"

    site.content = b"text\ntwo\n"
    assert update() is None
    assert rows() == "text\ntwo\n"
    assert "update: data/rows.csv.dvc has new data" in capfd.readouterr().out
    assert Path("data/rows.csv.dvc").read_text() != about


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (404, DataError, "is not there any more: 404"),
        (403, RemoteRefusedError, "refuses access: 403"),
        (500, TransientError, "does not answer: 500"),
        (None, TransientError, "does not answer: .*Connect call failed"),
    ],
)
def test_a_web_server_that_fails_costs_nothing(root: Path, site: Site, status, kind, said) -> None:
    dvc("import-url", site.url, "data/rows.csv")
    site.content = b"text\ntwo\n"
    if status:
        site.status = status
    else:
        site.end()
    error = update()
    assert type(error) is kind
    assert error.where == f"data/rows.csv.dvc, imported from {site.url}"
    assert re.search(said, error.what)
    assert rows() == "text\none\n"


@pytest.mark.parametrize("in_cache", [True, False])
def test_a_download_that_fails_halfway_leaves_what_was_here(root: Path, site: Site, monkeypatch, in_cache) -> None:
    """DVC has removed it by then. It may also be a version that DVC does not know."""
    dvc("import-url", site.url, "data/rows.csv")
    if not in_cache:
        Path("data/rows.csv").unlink()
        Path("data/rows.csv").write_text("text\nedited\n")
    before, about = rows(), Path("data/rows.csv.dvc").read_text()
    site.content = b"text\ntwo\n"

    def fail(*_: object, **__: object) -> None:
        assert not Path("data/rows.csv").exists()
        Path("data/rows.csv").write_text("text\ntw")
        raise ConnectionResetError("broken off")

    monkeypatch.setattr("dvc.dependency.base.fs_download", fail)
    error = update()
    assert type(error) is TransientError
    assert "broken off" in error.what
    assert rows() == before
    assert Path("data/rows.csv.dvc").read_text() == about
    monkeypatch.undo()


def test_files_of_a_folder(root: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "rows.csv").write_text("text\none\n")
    dvc("import-url", "-q", str(there), "data/all")
    tiny_source("data/all/*.csv")
    assert update() is None
    (there / "more.csv").write_text("text\nmore\n")
    assert update() is None
    assert Path("data/all/more.csv").read_text() == "text\nmore\n"
    (there / "more.csv").unlink()
    (there / "rows.csv").unlink()
    there.rmdir()
    error = update()
    assert type(error) is DataError
    assert "is not there any more" in error.what
    assert Path("data/all/more.csv").exists()


def tiny_source(train: str) -> None:
    text = Path("params/tiny.yaml").read_text()
    Path("params/tiny.yaml").write_text(text.replace("data/rows.csv", train))


def test_a_file_of_another_repository(root: Path, registry: Path, capfd) -> None:
    dvc("import", "-q", registry.as_uri(), "rows.csv", "-o", "data/rows.csv")
    about = Path("data/rows.csv.dvc").read_text()
    commit(registry)
    assert update() is None
    assert "update:" not in capfd.readouterr().out, "another commit, the same file"
    assert Path("data/rows.csv.dvc").read_text() == about
    publish(registry, "text\ntwo\n")
    assert update() is None
    assert rows() == "text\ntwo\n"

    git("rm", "-q", "rows.csv.dvc", folder=registry)
    commit(registry)
    assert type(update()) is DataError
    registry.rename(registry.with_name("away"))
    assert type(update()) is DataError
    text = Path("data/rows.csv.dvc").read_text().replace(registry.as_uri(), "http://127.0.0.1:9/registry.git")
    Path("data/rows.csv.dvc").write_text(text)
    assert type(update()) is TransientError
    assert rows() == "text\ntwo\n"


def test_rows_of_a_database(root: Path, tmp_path: Path) -> None:
    """A database cannot be asked whether it has new rows: the query is repeated."""
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE sentences (text)")
        database.execute("INSERT INTO sentences VALUES ('one')")
    dvc("config", "db.office.url", f"sqlite:///{path}")
    dvc("import-db", "-q", "--conn", "office", "--table", "sentences", "-o", "data/rows.csv")
    about = Path("data/rows.csv.dvc").read_text()
    assert update() is None
    assert Path("data/rows.csv.dvc").read_text() == about
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO sentences VALUES ('two')")
    assert update() is None
    assert rows() == "text\none\ntwo\n"
    path.unlink()
    path.mkdir()
    assert type(update()) is TransientError
    assert rows() == "text\none\ntwo\n"


def test_files_that_are_not_here_are_downloaded_if_somebody_reads_them(root: Path, site: Site) -> None:
    dvc("import-url", site.url, "data/rows.csv")
    dvc("remote", "add", "-q", "-d", "storage", "../storage")
    dvc("repro", "-q", "resolve@tiny", "ingest@tiny")
    Path("data/rows.csv").unlink()
    assert update() is None
    assert not Path("data/rows.csv").exists(), "the rows are those that ingest has read"
    Path("recipe").write_text("seed: 4\n")
    assert update() is None
    assert rows() == "text\none\n", "the check of the recipe reads rows"
    dvc("repro", "-q", "resolve@tiny")
    Path("data/rows.csv").unlink()
    assert update() is None
    assert not Path("data/rows.csv").exists()
    Path("dvc.yaml").write_text(DVC_YAML.replace("wc ", "wc -l "))
    assert update() is None
    assert rows() == "text\none\n"


def test_files_that_dvc_keeps_are_brought_for_the_check_of_a_recipe(root: Path) -> None:
    source = {"kind": "files", "train": "data/*.csv"}
    tiny.write(Path("params/tiny.yaml"), tiny.recipe({}) | {"data": {"source": source}})
    Path("data/rows.csv").write_text("text\none\n")
    dvc("add", "-q", "data/rows.csv")
    dvc("remote", "add", "-q", "-d", "storage", "../storage")
    dvc("push", "-q")
    for path in (Path("data/rows.csv"), Path(".dvc/cache")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    unwatched_sources.fetch_missing_source_files(Artifacts("tiny"), logging.getLogger())
    assert rows() == "text\none\n"


@pytest.mark.parametrize("train", ["data/rows.csv", "data/*.csv"])
def test_files_that_nothing_imports_cannot_be_refreshed(root: Path, site: Site, train) -> None:
    dvc("import-url", site.url, "elsewhere.csv")
    Path("data/rows.csv").write_text("text\none\n")
    dvc("add", "-q", "data/rows.csv")
    tiny_source(train)
    error = update()
    assert type(error) is RecipeError
    assert error.key == "data.source.refresh"


def test_what_is_imported_is_pushed_and_recorded_only_with_refresh(root: Path, registry: Path) -> None:
    """`dvc push` leaves the files of other repositories out."""
    from dvc.repo import Repo

    dvc("import", "-q", registry.as_uri(), "rows.csv", "-o", "data/rows.csv")
    (root.with_name("storage") / "files" / "md5").mkdir(parents=True)
    dvc("remote", "add", "-q", "-d", "storage", "../storage")
    dvc("repro", "-q", "ingest@tiny")
    assert dvc_update.find_dvc_files_to_refresh("tiny") == ["data/rows.csv.dvc"]
    stored = functools.partial(holds, root.with_name("storage"), "text\none\n")
    Path("raw").unlink()
    dvc("push", "-q", "data/rows.csv.dvc")
    assert not stored()
    with Repo() as repo:
        dvc_push.push_recipe_outputs(repo, "tiny")
    assert stored()

    text = Path("params/tiny.yaml").read_text()
    Path("params/tiny.yaml").write_text(text.replace("refresh: true", "refresh: false"))
    assert dvc_update.find_dvc_files_to_refresh("tiny") == []


def holds(storage: Path, content: str) -> bool:
    md5 = hashlib.md5(content.encode()).hexdigest()
    return (storage / "files/md5" / md5[:2] / md5[2:]).exists()

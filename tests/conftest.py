"""Fixtures for tests that drive a whole project; tests.support.project makes it."""

from __future__ import annotations

import compileall
import functools
import gc
import importlib
import importlib.metadata
import logging
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import filelock
import psutil
import pytest
import typer.main
from _pytest.assertion import rewrite

from tasks.shards import executor
from tests.support import forked
from tests.support.project import CODE, ROOT, Project, copy_project
from trainer.reporting import log
from trainer.runtime.imports import unhide_package

# Until all tests are collected: imports make much that lives on, and each collection would look at all of it.
gc.disable()

# Tests run side by side, and their models are too small to gain from threads. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests make 240,000 files, of 3 GiB: where memory is plenty, they are not on a disk, until tests fail.
_MEMORY = Path("/dev/shm")
if _MEMORY.exists() and min(psutil.virtual_memory().available, shutil.disk_usage(_MEMORY).free) > 8 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# What killed processes leave behind goes with a folder of its own; the files of failed tests stay.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
    # after multiprocessing has deleted its own folder there
    Finalize(None, shutil.rmtree, [tempfile.tempdir], {"ignore_errors": True}, exitpriority=-1000)

# A script starts its background jobs with SIGINT ignored, and so would be all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# All clients of Hubs share what they would read of the system's certificates, 0.03 s each; and no test loses power.
ssl.create_default_context = functools.cache(ssl.create_default_context)
os.fsync = lambda _: None

# Commands that tests call in this process are made of their functions once, 0.06 s each time.
typer.main.get_command = functools.cache(typer.main.get_command)

# Stages in this process fork from the server of tests.support.forked, which has imported more.
executor.set_forkserver_preload = executor.ensure_running = lambda *_: None


def pytest_configure(config: pytest.Config) -> None:
    """Compile the code once, for all projects that tests make of it; workers fork from one server."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for name in CODE:
            compileall.compile_dir(ROOT / name, quiet=2)
    else:
        _rewrite_own_share(config)
        forked.use_server(**config.workerinput["forkserver"])  # type: ignore[attr-defined]
        importlib.import_module("tests.support.preloading")


def _rewrite_own_share(config: pytest.Config) -> None:
    """Rewrite the asserts of some of the tests for all workers: in a fresh clone, each worker would rewrite all of them, in 6 s."""
    number, count = (config.workerinput[name] for name in ("workerid", "workercount"))  # type: ignore[attr-defined]
    for file in sorted((ROOT / "tests").rglob("test_*.py"))[int(number.removeprefix("gw")) :: count]:
        cached = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        if not sys.dont_write_bytecode and rewrite._read_pyc(file, cached) is None:
            cached.parent.mkdir(parents=True, exist_ok=True)
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, cached)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker, before it starts, how it reaches the server that it forks from."""
    node.workerinput["forkserver"] = forked.start_server()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests change what they share, the slow ones need those before them. What leaves threads behind comes last."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _alternate(items)
    items.sort(key=lambda item: item.get_closest_marker("runs_last") is not None)
    if config.option.markexpr == "slow":
        for item in items:
            if item.get_closest_marker("in_order"):
                item.add_marker("slow")


_LONGEST = (
    "test_tutorial",
    "test_drivers",
    "test_published_models",
    "test_mirroring",
    "test_year",
    "test_any_worker",
    "test_terminal",
    "test_secrets",
)
"""Files that take longest; they come first, because at the end the other workers would wait for them."""


def _alternate(items: list[pytest.Item]) -> list[pytest.Item]:
    """Put files whose tests wait for processes between those whose tests compute, which then run side by side; none at the end."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [path for path in files if path.parent.name in ("chaos", "e2e")]
    waiting.sort(key=lambda path: path.stem not in _LONGEST)
    computing = [path for path in files if path not in waiting]
    each = 4 * len(computing) // (5 * len(waiting)) if waiting else 0
    order = [path for i, one in enumerate(waiting) for path in (one, *computing[i * each : (i + 1) * each])]
    return [item for path in (*order, *computing[len(waiting) * each :]) for item in files[path]]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Free the memory that the files of tests take, if there is nothing to look at."""
    folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # pytest has no other way
    if exitstatus == pytest.ExitCode.OK and "PYTEST_XDIST_WORKER" not in os.environ and _MEMORY in folder.parents:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Collect garbage again, but more rarely, and none of what was there before: to look at all of that takes a second."""
    gc.freeze()
    gc.set_threshold(10_000, 50, 50)
    gc.enable()


_collect = gc.collect
_frozen_modules = 0


def _collect_and_leave_out_imports(generation: int = 2) -> int:
    """Look for garbage; if the product or accelerate does, leave what was imported out of later looks: there is one after each model, a quarter of a second long."""
    global _frozen_modules  # noqa: PLW0603
    found = _collect(generation)
    # hypothesis looks, too, and then for what refers to an object, which is not found among what is left out
    is_model_left = sys._getframe(1).f_globals["__name__"].startswith(("tasks.", "accelerate."))
    if is_model_left and len(sys.modules) > _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)
    return found


gc.collect = _collect_and_leave_out_imports


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Commands choose what their process logs and imports; those that a test calls in this one must not choose for the next test."""
    loggers = [logging.getLogger(name) for name in (None, *log.OURS)]
    before, for_people = [logger.level for logger in loggers], dict(log._levels)
    not_imported = [package for package in ("peft", "torchao") if package not in sys.modules]
    yield
    log._levels.update(for_people)
    for logger, level in zip(loggers, before, strict=True):
        if logger.level != level:  # to set one makes all loggers forget what they are enabled for
            logger.setLevel(level)
    for package in not_imported:
        unhide_package(package)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what is made once for all workers of the tests, by the first that needs it."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def make_prefect_home(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[], Path]:
    """Make a folder for Prefect with a database that is ready; all runs of tests share its migrations, which take eight seconds."""
    ready = request.config.cache.mkdir("prefect") / f"{importlib.metadata.version('prefect')}.db"

    def make() -> Path:
        home = tmp_path_factory.mktemp("prefect")
        with filelock.FileLock(f"{ready}.lock"):
            if not ready.exists():
                migrate = ["python", "-m", "prefect", "server", "database", "upgrade", "-y"]
                kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
                subprocess.run(
                    migrate, env=forked.commands(kept | {"PREFECT_HOME": str(home)}), check=True, capture_output=True
                )
                shutil.copy(home / "prefect.db", whole := ready.with_suffix(".part"))
                whole.rename(ready)
        (home / "evergreen").mkdir()
        for database in ("prefect.db", "evergreen/runs-1.db"):  # of a server of the user's, and of a run's own
            shutil.copy(ready, home / database)
        return home

    return make


@pytest.fixture(scope="session")
def prefect_home(make_prefect_home: Callable[[], Path]) -> Path:
    """Prefect's folder for the flows of this worker's tests."""
    return make_prefect_home()


@pytest.fixture(scope="session")
def first_run(shared_folder: Path, make_prefect_home: Callable[[], Path]) -> Path:
    """A folder with a project whose tiny recipe the flow has run, its Prefect home, and what the flow printed."""
    ready = shared_folder / "first-run"
    with filelock.FileLock(f"{ready}.lock"):
        if not ready.exists():
            made = Project(shared_folder / "making" / "project", shared_folder / "making" / "prefect")
            shutil.copytree(make_prefect_home(), shared_folder / "making" / "prefect")
            copy_project(made.root)
            try:
                made.run("git", "init", "-q", "-b", "main")
                said = made.run("python", "-m", "flows.cli", "run", "tiny")
            finally:
                made.end()
            (shared_folder / "making" / "output.txt").write_text(said, encoding="utf-8")
            (shared_folder / "making").rename(ready)
    return ready


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, first_run: Path) -> Iterator[Project]:
    """A project whose tiny recipe the flow has run; tests of a module share it, in order."""
    folder = tmp_path_factory.mktemp("finished") / "copy"
    shutil.copytree(first_run, folder, symlinks=True)
    made = Project(folder / "project", folder / "prefect")
    made.first_run = (folder / "output.txt").read_text(encoding="utf-8")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def project(tmp_path: Path, prefect_home: Path) -> Iterator[Project]:
    """A project in which nothing has run."""
    root = tmp_path / "project"
    copy_project(root)
    made = Project(root, prefect_home)
    made.run("git", "init", "-q", "-b", "main")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def own_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Write an objective called `own`, with one more line in its class; tests that need no more of it read only that."""
    from trainer import objectives

    folder = tmp_path / "own_objectives"
    folder.mkdir()
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(folder)])
    imports = "from params.defaults import ObjectiveDefaults\nfrom trainer.objectives.advice.base import ObjectiveFit, NewRecipeAdvice\n"
    imports += "from trainer.objectives.bases.objective import Objective\nfrom params.sections.base import Section\n"

    def write(line: str) -> None:
        (folder / "own.py").write_text(f"{imports}class Own(Objective):\n    options_class = Section\n    {line}\n")

    yield write
    sys.modules.pop("trainer.objectives.own", None)
    vars(objectives).pop("own", None)

"""Processes for the work of a stage: those of this machine, or of a Dask cluster.

Work is a pure function of an item; both travel to the processes as pickles. What a call gives must not depend on where it runs, nor on
how many run at once. Items name files by path, so a cluster needs storage that all of its machines share.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import multiprocessing
import os
import pickle
import platform
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from importlib.metadata import version
from multiprocessing.forkserver import ensure_running, set_forkserver_preload
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from params import KilledError, RecipeError
from params.schema import Launch
from tasks.progress import progress
from trainer.runtime.memory import collect_rarely, return_freed_memory

logger = logging.getLogger(__name__)
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_LIBRARIES: Final = ("great_expectations", "numpy", "pandas", "pyarrow", "tokenizers", "transformers")
_FEWEST: Final = 4
"""Fewest items for which workers start: to start one takes about as long as to work on a shard."""
_ATTEMPTS: Final = 3
_AHEAD: Final = 2
"""Calls that wait for each process: it never waits for this one, and few results wait to be taken."""
_FREE_EVERY_S: Final = 1.0
"""Seconds of work after which a process gives back the memory that is free: the next work has to ask for it again."""
_freed_at_s = time.monotonic()
"""When this process last did."""


class Workers:
    """The processes that work for a stage. They start when there is work for them, and end with the stage.

    Args:
        launch: says how many processes, or which cluster.
        folder: where functions are written for the processes to read; a cluster must share it.
        imports: modules that the work needs. They are imported once, and the processes of this machine share them.
    """

    def __init__(self, launch: Launch, folder: Path, imports: Sequence[str] = ()) -> None:
        self._launch = launch
        self._folder = folder
        self._imports = imports
        self._processes = launch.data_workers or usable_cpus()
        self._open = contextlib.ExitStack()
        self._submit: Callable[..., Any] | None = None
        """Starts a call, and returns its future."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)  # an error of a cluster becomes ours

    def expect(self, items: int) -> None:
        """Begin with the imports for work on so many items, while this process does something else."""
        if not self._launch.data_cluster and self._are_worth(items):
            _start_server(self._imports)

    def map(self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, what: str) -> Iterator[ResultT]:
        """Yield `function(item)` of each item, in order. This process computes them if they are few.

        Args:
            function: a function of a module, or a `functools.partial` of one. It travels to each process once.
            items: its arguments.
            what: a plural noun for the log, such as `shards`.

        Raises:
            KilledError: a process was killed while it computed the same item for the third time.
            RecipeError: the cluster does not exist, or cannot do the work.
            TransientError: the cluster does not answer any more.
            EvergreenError: the error of the first item that has one.
        """
        found = self._elsewhere(function, items) if self._are_worth(len(items)) else map(function, items)
        for result in progress(found, what=what, total=len(items)):
            yield result
            _free_memory()

    def _are_worth(self, items: int) -> bool:
        """Whether workers start for so many items."""
        return items >= _FEWEST and (self._processes > 1 or bool(self._launch.data_cluster))

    def _elsewhere(self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder.absolute() / f".{uuid.uuid4().hex}.function"
        path.write_bytes(pickle.dumps(_surroundings()) + pickle.dumps(function))
        try:
            done, attempts = 0, 1
            while done < len(items):
                try:
                    for result in self._in_order(path, items[done:]):
                        yield result
                        done, attempts = done + 1, 1
                except BrokenProcessPool:
                    self._open.close()
                    self._submit = None
                    if attempts == _ATTEMPTS:
                        what = f"a process was killed {attempts} times at item {done + 1} of {len(items)}: memory may be short"
                        fix = "lower it, so that fewer processes share the memory"
                        raise KilledError("launch.data_workers", what, fix) from None
                    attempts += 1
                    logger.warning(
                        "a process of the stage was killed; starting again from item %d of %d", done + 1, len(items)
                    )
        finally:
            path.unlink(missing_ok=True)

    def _in_order(self, function: Path, items: Sequence[Any]) -> Iterator[Any]:
        """Yield the results in order, while few calls are not done or not taken."""
        submit = self._submit = self._submit or self._start()
        waiting: list[Any] = []
        for item in items:
            waiting.append(submit(_call, function, item))
            if len(waiting) >= _AHEAD * self._processes:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()

    def _start(self) -> Callable[..., Any]:
        if not self._launch.data_cluster:
            _start_server(self._imports)
            return self._open.enter_context(_processes(self._processes)).submit
        from tasks.shards.cluster import connect

        client = self._open.enter_context(connect(self._launch.data_cluster))
        self._processes = sum(client.nthreads().values())  # type: ignore[no-untyped-call]
        return partial(client.submit, pure=False)


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the versions that the bytes of a shard can depend on."""
    return {"Python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}


@lru_cache(maxsize=1)
def _code() -> str:
    """Return a hash of Evergreen's code."""
    code, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(path for package in ("params", "tasks", "trainer") for path in (root / package).rglob("*.py")):
        code.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return code.hexdigest()[:12]


def _surroundings() -> dict[str, str]:
    return {"Evergreen": _code(), **versions()}


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _call(function: Path, item: Any) -> Any:
    try:
        return _function(function)(item)
    finally:
        _free_memory()


def _free_memory() -> None:
    """Give back the memory that is free, now and then: other kinds of work would find it in pieces."""
    global _freed_at_s  # noqa: PLW0603 - of this process
    if time.monotonic() - _freed_at_s >= _FREE_EVERY_S:
        return_freed_memory()
        _freed_at_s = time.monotonic()


@lru_cache(maxsize=4)
def _function(path: Path) -> Callable[[Any], Any]:
    """Read a function that the stage wrote; a worker of a cluster may have other code, or not see the file."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each CPU
    try:
        file = path.open("rb")
    except OSError as error:
        what = f"the worker on {socket.gethostname()} cannot read {path}: {error.strerror}"
        fix = "give all machines of the cluster the project's folder at the same path"
        raise RecipeError.at("launch.data_cluster", what, fix) from error
    with file:
        own, wanted = _surroundings(), pickle.load(file)  # noqa: S301 - the stage wrote it
        if own != wanted:
            differences = (
                f"{name} {own.get(name)} instead of {wanted[name]}" for name in wanted if own.get(name) != wanted[name]
            )
            what = f"the worker on {socket.gethostname()} has {', '.join(differences)}"
            fix = "give all machines of the cluster the same project and packages, and start the workers again"
            raise RecipeError.at("launch.data_cluster", what, fix)
        function: Callable[[Any], Any] = pickle.load(file)  # noqa: S301
    return function


def _start_server(imports: Sequence[str]) -> None:
    """Start the process that imports modules and is then forked for each process, if it does not run yet.

    It has one thread, so a fork is safe, which one of this process is not. It and its forks never get Ctrl-C, which a terminal sends to all:
    they end with this process.
    """
    set_forkserver_preload(["__main__", __name__, *imports])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Executor]:
    executor = ProcessPoolExecutor(count, multiprocessing.get_context("forkserver"), initializer=_prepare)
    try:
        yield executor
    finally:  # also after an error: nothing waits for calls whose results nobody takes
        executor.shutdown(wait=True, cancel_futures=True)


def _prepare() -> None:
    """Prepare a process: it ends with its stage, and has one thread, because there is a process for each CPU."""
    threading.Thread(target=_end_with_stage, daemon=True).start()
    gc.freeze()  # a look for garbage would copy the pages of what was imported, which all processes share
    collect_rarely()
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _end_with_stage() -> None:
    stage = multiprocessing.parent_process()
    assert stage, "this is a process of a stage"
    stage.join()
    os._exit(os.EX_TEMPFAIL)

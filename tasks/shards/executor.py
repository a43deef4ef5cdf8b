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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ProcessPoolExecutor
from functools import lru_cache
from importlib.metadata import version
from multiprocessing import resource_tracker
from multiprocessing.forkserver import ensure_running, set_forkserver_preload
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from params import KilledError, RecipeError, TransientError
from params.foundation.installation import install_extra
from trainer.runtime.forked import multiprocessing_server_is_forked
from trainer.runtime.memory import reduce_garbage_collection, return_freed_memory

if TYPE_CHECKING:
    from distributed import Client

_LIBRARIES: Final = ("great_expectations", "numpy", "pandas", "pyarrow", "tokenizers", "transformers")
_CLUSTER_KEY: Final = "launch.data_cluster"
_CLUSTER_TIMEOUT_S: Final = 30
_FREE_EVERY_S: Final = 1.0
"""Seconds of work after which a process gives back the memory that is free: the next work has to ask for it again."""
_freed_at_s = time.monotonic()


@lru_cache(maxsize=1)
def shard_library_versions() -> dict[str, str]:
    """Return the versions that the bytes of a shard can depend on."""
    return {"Python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}


@lru_cache(maxsize=1)
def code_hash_and_versions() -> dict[str, str]:
    """Return all that a call depends on beside its function and item: a hash of Evergreen's code, and versions."""
    code, root = hashlib.sha256(), Path(__file__).parents[2]
    for path in sorted(path for package in ("params", "tasks", "trainer") for path in (root / package).rglob("*.py")):
        code.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return {"Evergreen": code.hexdigest()[:12], **shard_library_versions()}


def count_usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def call_pickled_function(function: Path, item: Any) -> Any:
    """Compute `function(item)` in a process of the stage; the function was written by the stage."""
    try:
        return _function(function)(item)
    finally:
        release_memory_if_due()


def release_memory_if_due() -> None:
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
        raise RecipeError.at(_CLUSTER_KEY, what, fix) from error
    with file:
        own, wanted = code_hash_and_versions(), pickle.load(file)  # noqa: S301 - the stage wrote it
        if own != wanted:
            differences = (
                f"{name} {own.get(name)} instead of {wanted[name]}" for name in wanted if own.get(name) != wanted[name]
            )
            what = f"the worker on {socket.gethostname()} has {', '.join(differences)}"
            fix = "run again, if the code was edited meanwhile; else give all machines of the cluster the same project"
            fix += " and packages, and start the workers again"
            raise RecipeError.at(_CLUSTER_KEY, what, fix)
        function: Callable[[Any], Any] = pickle.load(file)  # noqa: S301
    return function


def start_fork_server(imports: Sequence[str]) -> None:
    """Start the process that imports modules and is then forked for each process, if it does not run yet.

    It has one thread, so a fork is safe, which one of this process is not. In a run of the flow it is a fork itself, and imports little. It and its forks never get Ctrl-C, which a terminal sends to all:
    they end with this process.
    """
    set_forkserver_preload(["__main__", __name__, *imports])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    resource_tracker.ensure_running()
    try:
        with multiprocessing_server_is_forked():
            ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def start_process_pool(count: int) -> Iterator[Executor]:
    """Start processes of this machine, as calls need them; they end with the block."""
    executor = ProcessPoolExecutor(count, multiprocessing.get_context("forkserver"), initializer=_prepare)
    try:
        yield executor
    finally:  # also after an error: nothing waits for calls whose results nobody takes
        executor.shutdown(wait=True, cancel_futures=True)


def _prepare() -> None:
    """Prepare a process: it ends with its stage, and has one thread, because there is a process for each CPU."""
    threading.Thread(target=_end_with_stage, daemon=True).start()
    gc.freeze()  # a look for garbage would copy the pages of what was imported, which all processes share
    reduce_garbage_collection()
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _end_with_stage() -> None:
    stage = multiprocessing.parent_process()
    assert stage, "this is a process of a stage"
    stage.join()
    os._exit(os.EX_TEMPFAIL)


@contextlib.contextmanager
def connect_to_cluster(address: str) -> Iterator[Client]:
    """Connect to the Dask scheduler at `address`, for example `tcp://scheduler:8786`; inside the block, its errors are ours.

    A call whose worker is killed goes to another one. Dask's own executor (`Client.get_executor`) is not used: when the scheduler has gone,
    its futures never end (distributed 2026.8.0).

    Raises:
        RecipeError: Dask is not installed.
        TransientError: nothing answers there, the cluster has no worker, or it has gone.
        KilledError: several workers were killed at a call.
    """
    try:
        from distributed import Client, KilledWorker
        from distributed.comm.core import CommClosedError
    except ImportError as error:
        fix = f"install the extra `cluster`: {install_extra('cluster')}"
        raise RecipeError.at(_CLUSTER_KEY, "Dask is not installed", fix) from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it logs is raised as well
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(
                Client(address, timeout=_CLUSTER_TIMEOUT_S, set_as_default=False)  # type: ignore[no-untyped-call]
            )
            client.wait_for_workers(1, timeout=_CLUSTER_TIMEOUT_S)
        except (OSError, TimeoutError, ValueError) as error:
            what = f"the cluster at {address} cannot be used: {error}"
            fix = "start it with `dask scheduler` and `dask worker`, and check the address"
            raise TransientError(_CLUSTER_KEY, what, fix) from error
        try:
            yield client
        except KilledWorker as error:
            what = f"a worker was killed several times at the same shard: memory may be short ({error})"
            fix = "give the workers more memory, or let fewer of them share a machine"
            raise KilledError(_CLUSTER_KEY, what, fix) from error
        except (CancelledError, CommClosedError) as error:
            what = f"the cluster at {address} does not answer any more"
            raise TransientError(_CLUSTER_KEY, what, "start it again; what is done of the shards is kept") from error

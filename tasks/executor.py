"""Work on shards: pure functions of picklable arguments, run by processes of this machine.

What a call gives must not depend on where it runs, nor on how many run at once.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final, TypeVar

from params import KilledError
from params.schema import Launch
from tasks.progress import progress
from trainer.runtime.lifetime import die_with_parent
from trainer.runtime.memory import collect_rarely

logger = logging.getLogger(__name__)
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_ATTEMPTS: Final = 3
_AHEAD: Final = 2
"""Calls that wait for each process: it never waits for this one, and few results wait to be taken."""


def run_all(
    function: Callable[[ItemT], ResultT], items: Sequence[ItemT], launch: Launch, *, what: str
) -> Iterator[ResultT]:
    """Yield `function(item)` of each item, in order; processes compute them, if there are several items.

    Args:
        function: a function of a module, or a `functools.partial` of one.
        items: its arguments.
        launch: says how many processes there are.
        what: a plural noun for the log, such as `shards of train`.

    Raises:
        KilledError: a process was killed while it computed the same item for the third time.
        EvergreenError: the error of the first item that has one.
    """
    workers = min(launch.data_workers or _usable_cpus(), len(items))
    found = map(function, items) if workers <= 1 else _in_processes(function, items, workers)
    yield from progress(found, what=what, total=len(items))


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(function: Callable[[ItemT], ResultT], items: Sequence[ItemT], workers: int) -> Iterator[ResultT]:
    done, attempts = 0, 1
    while done < len(items):
        with _processes(workers) as executor:
            try:
                for result in _in_order(executor, function, items[done:], workers * _AHEAD):
                    yield result
                    done, attempts = done + 1, 1
            except BrokenProcessPool:
                if attempts == _ATTEMPTS:
                    what = (
                        f"a process was killed {attempts} times at item {done + 1} of {len(items)}: memory may be short"
                    )
                    raise KilledError(
                        "launch.data_workers", what, "lower it, so that fewer processes share the memory"
                    ) from None
                attempts += 1
                logger.warning(
                    "a process of the stage was killed; starting again from item %d of %d", done + 1, len(items)
                )


def _in_order(
    executor: Executor, function: Callable[[ItemT], ResultT], items: Sequence[ItemT], ahead: int
) -> Iterator[ResultT]:
    """Yield the results in order, while at most `ahead` calls are not done or not taken."""
    waiting: list[Future[ResultT]] = []
    for item in items:
        waiting.append(executor.submit(function, item))
        if len(waiting) >= ahead:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Executor]:
    executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_start)
    try:
        yield executor
    finally:  # also after an error: nothing waits for calls whose results nobody takes
        executor.shutdown(wait=True, cancel_futures=True)


def _start() -> None:
    """Prepare a process: it ends with its stage, and has one thread, because there is a process for each CPU."""
    die_with_parent()
    collect_rarely()
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

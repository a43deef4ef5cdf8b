"""The progress of a stage, as `trainer.reporting.signs_of_life` shows it; and the end of a stage that makes none."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

import psutil

from params import StalledError
from params.foundation import command_result
from trainer.reporting import signs_of_life

T = TypeVar("T")
_STEP_S = 1.0  # seconds between two looks at the progress
_moved = threading.Event()


def reset_idle_timer() -> None:
    """Note that the stage makes progress; costs less than a microsecond."""
    if not _moved.is_set():
        _moved.set()


@contextlib.contextmanager
def end_process_if_idle(stage: str, limit_s: float) -> Iterator[None]:
    """End this process and its children with a `StalledError` once the block makes no progress for `limit_s`.

    The process ends from another thread, because nothing else interrupts a call into a library, such as a query.
    """
    ended, worker = threading.Event(), threading.get_ident()

    def watch() -> None:
        idle_s = 0.0
        # Counted in steps, so that time in which this process was suspended does not count.
        while not ended.wait(_STEP_S):
            idle_s = 0.0 if _moved.is_set() else idle_s + _STEP_S
            _moved.clear()
            if idle_s >= limit_s:
                _end(stage, idle_s, sys._current_frames()[worker])  # noqa: SLF001 (documented)

    reset_idle_timer()
    thread = threading.Thread(target=watch, name="time limit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _end(stage: str, idle_s: float, frame: FrameType) -> None:
    stack = traceback.extract_stack(frame)
    own = [f for f in stack if not f.filename.startswith(("<", sys.prefix, sys.base_prefix))] or stack
    place = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno} in {own[-1].name}"
    fix = "find out what it waits for there; if it is only slow, raise launch.stage_timeout_s"
    error = StalledError(stage, f"made no progress for {idle_s:.0f} s, at {place}", fix)
    sys.stdout.flush()
    print(*traceback.format_list(stack), sep="", end="", file=sys.stderr, flush=True)
    command_result.report_to_starter(error)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(error.exit_code)


def iterate_with_progress(items: Iterable[T], *, what: str, total: int | None = None) -> Iterator[T]:
    """Yield `items`, and let their count be shown. `what` is a plural noun, such as `rows`."""
    try:
        for count, item in enumerate(items):
            reset_idle_timer()
            signs_of_life.show_progress(what, count, total)
            yield item
    finally:
        signs_of_life.hide_progress()

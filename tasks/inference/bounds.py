"""The time and memory that a stranger's model gets: its chat template may loop for ever, and its tokenizer or its size take any amount of memory.

The process of a Hub's pages (`tasks.inference.trial_process`) is ended by the kernel at the same limits. A command has the caller's work in the
same process, so a limit is an error here.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

import psutil

from params import ModelError
from params.foundation import command_result

TIMEOUT_S: Final = 120.0
"""For one answer, or for loading a model."""
_REPEAT_S: Final = 5.0
"""The error is raised again after so long: a library may have caught it."""
_GRACE_S: Final = 15.0
"""After which the process ends if a library never returns to Python."""
_FIX: Final = "try a shorter text; or, if you trust the model, add --no-limits"


def memory_share() -> int:
    """Return the bytes of memory that a model gets: half of this machine's."""
    return int(psutil.virtual_memory().total // 2)


@contextlib.contextmanager
def bounded_step(
    where: str, what: str, timeout_s: float = TIMEOUT_S, memory_bytes: int | None = None
) -> Iterator[None]:
    """Bound the time and the memory of the block; `what` it does is in the error. Elsewhere than in the main thread, only the memory.

    Raises:
        ModelError: a limit is reached.
    """
    share = memory_bytes or memory_share()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    is_lower = soft == resource.RLIM_INFINITY or share < soft
    late = ModelError(where, f"{what} takes longer than {timeout_s:.0f} s", _FIX)
    try:
        if is_lower:
            resource.setrlimit(resource.RLIMIT_DATA, (share, hard))
        with _alarm(late, timeout_s):
            yield
    except MemoryError:
        much = f"{what} needs more memory than it gets, {share / 2**30:.1f} GiB"
        raise ModelError(where, much, _FIX) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def _alarm(late: ModelError, timeout_s: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        raise late

    def end() -> None:
        command_result.report_to_starter(late)
        sys.stderr.flush()
        os._exit(late.exit_code)

    before = signal.signal(signal.SIGALRM, stop)
    watch = threading.Timer(timeout_s + _GRACE_S, end)
    watch.daemon = True
    watch.start()
    signal.setitimer(signal.ITIMER_REAL, timeout_s, _REPEAT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        watch.cancel()
        signal.signal(signal.SIGALRM, before)

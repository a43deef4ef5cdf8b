"""How a process uses memory: what a step frees stays with it or goes back, and what it has imported is never searched for garbage."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import sys
from collections.abc import Iterator

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""


def keep_freed_memory() -> None:
    """Let glibc keep the memory that is freed, instead of returning large blocks to the kernel and asking for them again.

    The kernel fills each page that it hands out with zeros. A training step on a CPU frees and asks for the same hundreds
    of megabytes, which cost it up to a third of a short step, and half of a step with huge layers. The process then holds its
    largest use until it ends, and more, because blocks of other sizes do not fill the gaps: a third more with such layers.
    """
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory() -> None:
    """Give the memory that is free to the kernel, that of Arrow and of new garbage too; takes milliseconds."""
    gc.collect(0)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def reduce_garbage_collection() -> None:
    """Look for garbage a hundredth as often as Python does, and not at the end.

    For a short process: most of its objects come from imports and live until the end. To search them again and again takes
    a tenth of its time.
    """
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)


@contextlib.contextmanager
def import_without_gc() -> Iterator[None]:
    """Import packages without looking for garbage in between, nor ever after in what they leave: each search takes a second.

    For a long process, which is to free what it no longer needs as early as any other.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.freeze)


def import_network_code() -> None:
    """Import what the code of every network imports, as `import_without_gc` does: most of what a process with a model has.

    transformers would import it with the first model, and each search for what that model leaves would look through it.
    """
    if (code := "transformers.generation.utils") not in sys.modules:
        from trainer.runtime.imports import import_losses_without_scipy

        with import_without_gc():
            import_losses_without_scipy()
            importlib.import_module(code)

"""The lifetime of processes: they end with their parent, and stop with a grace period.

It imports nothing that takes long, so that a process can call `die_with_parent` before it imports anything else.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

SUPERVISOR = "EVERGREEN_SUPERVISOR"
"""Environment variable: id of the process that supervises a training, for the processes below its launcher."""
FORK = "EVERGREEN_FORK"
"""Environment variable of a fork of trainer.runtime.fork_server: its process id."""
STOP = "stop"
"""File in a run's folder: a request to stop the training."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(*, ancestors: Collection[int] = ()) -> None:
    """Ask the kernel to kill this process when its parent ends, however it ends (Linux only; else do nothing).

    Without this, a killed `dvc` would leave its command running, and the next `dvc` would start a second one. If none of
    `ancestors` is above this process, the one that started it ended before this call. The command that a fork stands for has looked;
    what a fork starts has the fork above it, and none of the processes that are above that command.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    is_orphan = os.getppid() != parent
    if ancestors and not is_fork():
        import psutil

        known = {*ancestors, int(os.environ.get(FORK, "0"))}
        is_orphan |= not any(process.pid in known for process in psutil.Process().parents())
    if is_orphan:
        print("the process that started this one has ended", file=sys.stderr, flush=True)
        os._exit(os.EX_TEMPFAIL)


def is_fork() -> bool:
    """Whether this process is a fork of trainer.runtime.fork_server, not below one."""
    return os.environ.get(FORK) == str(os.getpid())


def run_and_end(main: Callable[[], Any]) -> NoReturn:
    """Call `main`, and end this process as `sys.exit(main())` does, but for Python's search for what can be freed.

    That takes 0.5 s in a process that has imported torch. Threads are waited for, and the functions of atexit called. The search remains
    if a file or pipe is still open for writing, which it completes. An error of `main` is raised, and so is a text that it exits with.
    """
    inherited = set(_files_open_for_writing())
    sys.unraisablehook = _interrupt_again
    atexit.register(gc.unfreeze)  # the last of these functions: of what is frozen no file would be closed
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    if not isinstance(status, int | None):
        sys.exit(status)
    # As multiprocessing ends its forks.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    if not sys.platform.startswith("linux") or set(_files_open_for_writing()) - inherited:
        sys.exit(status)
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        sys.exit(status)  # it says so
    ctypes.PyDLL(None).fflush(None)  # C has buffers, too; its own end would take 0.2 s to free what libraries hold
    os._exit(status or os.EX_OK)


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise a KeyboardInterrupt once more that came while Python took an object apart, and that Python only prints there."""
    main = threading.main_thread()
    if lost.exc_type is KeyboardInterrupt and threading.current_thread() is main and not sys.is_finalizing():
        # When Python has left that place.
        threading.Timer(0.01, signal.pthread_kill, (main.ident, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


def _files_open_for_writing() -> Iterator[tuple[int, int, int]]:
    """Yield descriptor, device and inode of each file on disk or pipe that is open for writing, beside the standard streams; on Linux."""
    folder, raw = Path("/proc/self/fd"), [*_pipes_to_servers()]
    for entry in (int(path.name) for path in folder.iterdir()) if folder.exists() else ():
        with contextlib.suppress(OSError):  # the one of this search is closed
            writes = fcntl.fcntl(entry, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            found = os.fstat(entry)
            if entry > 2 and entry not in raw and writes and stat.S_IFMT(found.st_mode) in (stat.S_IFREG, stat.S_IFIFO):
                yield entry, found.st_dev, found.st_ino


def _pipes_to_servers() -> Iterator[int]:
    """Yield the descriptors by which servers of multiprocessing know that this process lives: nobody writes text to them."""
    for module, server, name in (
        ("forkserver", "_forkserver", "_forkserver_alive_fd"),
        ("resource_tracker", "_resource_tracker", "_fd"),
    ):
        found = getattr(sys.modules.get(f"multiprocessing.{module}"), server, None)
        yield getattr(found, name, None) or -1


def listen_for_stop(folder: Path) -> Callable[[], bool]:
    """Catch SIGTERM and SIGINT, and return a function that returns whether a stop of the run in `folder` was requested."""
    caught: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: caught.append(number))
    return lambda: bool(caught) or (folder / STOP).exists()


def stop_process_group(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Stop `process`, which leads a process group, and its group: SIGTERM, at most `grace_s` to end, SIGKILL."""
    if process.poll() is None:
        signal_process_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    signal_process_group(process, signal.SIGKILL)
    process.wait()


def signal_process_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to the process group that `process` leads, if any of its processes is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)

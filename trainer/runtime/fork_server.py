"""Commands that are forked from a process which has imported the libraries, instead of importing them again (Linux only).

    with running():                                       # in the flow
        python -m tasks ingest ...  --hand_over--> server  --fork-->  tasks.__main__.main

A command that finds a server hands itself over: arguments, environment, standard streams. It then stands for its fork:
it passes signals on, and ends as the fork ends. The fork is a process of its own that leads a session. The kernel kills its
process group when the command ends, however it ends, and the fork when the server does. When the fork ends, the server kills
what is left of its group.

A fork is what a start would be, or there is none. The server forgets the project's modules, so that a fork runs the code
that is there when it begins. It does not fork for a command with another environment or folder, or other limits and rights of a
process, nor once packages or this file were changed, nor with threads of Python; it does not import torch where a GPU is, whose driver
may not be carried through a fork. A command without a fork does its work itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import resource
import secrets
import select
import signal
import site
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from trainer.environment import environment_variable
from trainer.runtime.lifetime import FORK, die_with_parent, is_fork, run_and_end

VARIABLE: Final = "EVERGREEN_FORK_SERVER"
"""Environment variable: address of the server, set by `running`. A user sets it to `none`: then nothing is forked."""
TORCH: Final = (
    "torch",
    "accelerate",
    "torch._dynamo",
    "torch.distributed.tensor",
    "transformers.models.auto.modeling_auto",
)
"""What asks for GPUs."""
OF_TRAINING: Final = ("numpy", "pyarrow.parquet", "transformers", "tokenizers.processors", *TORCH)
"""What the only process of a training imports."""
_PROJECT: Final = ("params", "trainer", "tasks", "flows")
_GPUS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_OWN_VARIABLES: Final = ("DVC_", "EVERGREEN_", "PREFECT__")
"""Beginnings of the names of variables that each command has for itself, and that no library that is imported reads."""
_SHELL: Final = {"_", "PWD", "OLDPWD", "SHLVL", "LINES", "COLUMNS"}
_THREADS: Final = "OMP_NUM_THREADS"
_LATER = {_THREADS, "TOKENIZERS_PARALLELISM", "GLOO_SOCKET_IFNAME"}
_LATER |= {"DISABLE_SAFETENSORS_CONVERSION", "TORCHINDUCTOR_CACHE_DIR"}
"""Variables that a stage adds for its training: a fork follows the first one, and libraries read the others when they need them."""
_OF_STAGES = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_OF_STAGES |= {"GX_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
"""What a stage adds for itself and the processes that it starts; the first one if its output is no terminal."""
_LIMITS: Final = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
_F_SETSIG: Final = 10
_MOST_FILES: Final = 8
_SIZE: Final = struct.Struct("!I")


@contextlib.contextmanager
def running(environment: dict[str, str], modules: Sequence[str]) -> Iterator[None]:
    """Run a server that imports `modules`, for the commands that this process starts in the block with `environment`."""
    if not sys.platform.startswith("linux") or VARIABLE in os.environ:
        yield
        return
    address = f"evergreen-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + address)
        listener.listen(32)
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.runtime.fork_server", str(listener.fileno()), str(os.getpid()), *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    try:
        with environment_variable(VARIABLE, address):
            yield
    finally:
        process.kill()
        process.wait()


def hand_over(module: str, function: str, *arguments: str, files: Sequence[int] = ()) -> None:
    """Let a fork call `module.function(*arguments)`, and end this process as the fork ends; return if there is no server.

    What the function returns is the fork's exit status. Descriptors in `files` are further arguments, with the fork's own numbers.
    """
    address = os.environ.get(VARIABLE, "none")
    if address == "none" or is_fork():
        return
    server = socket.socket(socket.AF_UNIX)
    alive, end = os.pipe()  # nobody writes to it: it closes when this process ends
    request = {"call": [module, function, *arguments], "arguments": sys.argv, "environment": dict(os.environ)}
    message = json.dumps(request | {"folder": str(Path.cwd()), "inherited": _inherited()}).encode()
    try:
        server.connect("\0" + address)
        socket.send_fds(server, [_SIZE.pack(len(message))], [0, 1, 2, alive, *files])
        server.sendall(message)
        answers = server.makefile()
        pid = int(answers.readline() or 0)
    except OSError:  # the server has ended
        pid = 0
    os.close(alive)
    if pid:
        _end_as(pid, answers.readline)
    os.close(end)
    server.close()


def _end_as(pid: int, wait: Callable[[], str]) -> NoReturn:
    """Pass signals on to the process group of the fork `pid`, and end as it does."""

    def forward(number: int, _: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)

    forwarded = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in forwarded:
        signal.signal(number, forward)
    status = int(wait() or -signal.SIGKILL)  # a server that is killed takes its forks along
    for number in forwarded:
        signal.signal(number, signal.SIG_DFL)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the fork has written one, if one is wanted
        os.kill(os.getpid(), -status)
    os._exit(status)


class _Server:
    """Forks for the commands that connect to `listener`, and tells them how their forks ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._pid = listener, os.getpid()
        self._environment, self._packages = _decide_imports(os.environ), _packages()
        self._clients: dict[int, socket.socket] = {}
        self._ended, self._wake = os.pipe()
        for end in (self._ended, self._wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def answer(self, wait_s: float | None) -> Callable[[], Any] | None:
        """Answer the commands that have come, or that come within `wait_s` seconds; None: for ever. A fork returns its work."""
        while ready := select.select([self._listener.fileno(), self._ended], [], [], wait_s)[0]:
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._report_ended()
            if self._listener.fileno() in ready and (work := self._fork_for(self._listener.accept()[0])):
                return work
        return None

    def _report_ended(self) -> None:
        while self._clients and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            with contextlib.suppress(ProcessLookupError):  # until it is waited for, no other process has its id
                os.killpg(ended.si_pid, signal.SIGKILL)
            pid, status = os.waitpid(ended.si_pid, 0)
            if client := self._clients.pop(pid, None):  # else a library has started it
                with client, contextlib.suppress(OSError):  # the command was killed
                    client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))

    def _fork_for(self, client: socket.socket) -> Callable[[], Any] | None:
        files: list[int] = []
        try:
            request, files = _receive(client)
            if self._is_like(request) and threading.active_count() == 1:
                server, pid = os.getpid(), _fork()
                if not pid:
                    self._close()
                    client.close()
                    return partial(_become, request, files, server)
                self._clients[pid] = client
                client.sendall(b"%d\n" % pid)
                return None
        # The command was killed, or is none of ours, or of another version; without an answer it does its work itself.
        except (OSError, ValueError, LookupError, TypeError, struct.error):
            pass
        finally:
            if os.getpid() == self._pid:
                for file in files:
                    os.close(file)
        client.close()
        return None

    def _is_like(self, request: dict[str, Any]) -> bool:
        variables = request["environment"]
        if variables.get(_THREADS) != os.environ.get(_THREADS) and not variables.get(_THREADS, "").isdecimal():
            return False  # torch could not follow it
        same = (str(Path.cwd()), self._environment, self._packages, _inherited())
        return (request["folder"], _decide_imports(variables), _packages(), request["inherited"]) == same

    def _close(self) -> None:
        """Close, in a fork, what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for file in (self._ended, self._wake):
            os.close(file)
        for client in (self._listener, *self._clients.values()):
            client.close()


def _decide_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may decide what a library is when it is imported."""
    ignored = _SHELL | _LATER
    return _OF_STAGES | {k: v for k, v in environment.items() if k not in ignored and not k.startswith(_OWN_VARIABLES)}


def _inherited() -> list[Any]:
    """Return what a process inherits beside its environment: limits, mask of new files, priority, and CPUs."""
    os.umask(mask := os.umask(0o077))
    limits = [list(resource.getrlimit(limit)) for limit in _LIMITS]
    return [limits, mask, os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))]


def _packages() -> list[int]:
    """Return the times at which a package was last installed or removed, and this file edited, in ns."""
    return [Path(path).stat().st_mtime_ns for path in (__file__, *site.getsitepackages()) if Path(path).exists()]


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return what a command of this user asks for, and its files: input, output, errors, and the pipe that ends with it."""
    client.settimeout(10)
    _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise PermissionError
    size, files, _, _ = socket.recv_fds(client, _SIZE.size, _MOST_FILES)
    [left], message = _SIZE.unpack(size), b""
    while len(message) < left and (part := client.recv(1 << 16)):
        message += part
    return json.loads(message), files


def _fork() -> int:
    with warnings.catch_warnings():
        # those threads belong to BLAS and Arrow, which prepare for a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(request: dict[str, Any], files: list[int], server: int) -> Any:
    """Become, in a fork, the process that was asked for, and do its work."""
    os.setsid()
    die_with_parent()
    streams, alive, others = files[:3], files[3], files[4:]
    fcntl.fcntl(alive, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(alive, _F_SETSIG, int(signal.SIGKILL))
    fcntl.fcntl(alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != server or select.select([alive], [], [], 0)[0]:
        os._exit(os.EX_TEMPFAIL)  # one of them ended before the kernel could note that we end with it
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    of_server = os.environ.get(_THREADS)
    os.environ.clear()
    os.environ.update(request["environment"], **{FORK: str(os.getpid())})
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # as in a process of its own
    threads = os.environ.get(_THREADS)
    if "torch" in sys.modules and threads and threads != of_server:
        sys.modules["torch"].set_num_threads(int(threads))
    sys.argv = request["arguments"]
    module, function, *arguments = request["call"]
    return getattr(importlib.import_module(module), function)(*arguments, *others)


def _import(module: str) -> None:
    """Import a module as the stages do; the project's own are forgotten again."""
    from trainer.runtime.memory import import_without_gc

    with contextlib.suppress(Exception), import_without_gc():  # the fork that needs it says what is wrong
        importlib.import_module(module)
    for name in [name for name in sys.modules if name.partition(".")[0] in _PROJECT]:
        del sys.modules[name]


def _main(listener: int, parent: int, modules: Sequence[str]) -> Any:
    """Import one library after the other, and answer in between; in a fork, return what its work returns."""
    die_with_parent()
    if os.getppid() != parent:
        sys.exit(os.EX_TEMPFAIL)
    server = _Server(socket.socket(fileno=listener))
    os.environ |= _OF_STAGES | os.environ
    has_gpu = any(Path(path).exists() for path in _GPUS)
    for module in modules:
        if work := server.answer(0):
            return work()
        if not (has_gpu and module in TORCH):
            _import(module)
    while not (work := server.answer(None)):
        pass
    return work()


if __name__ == "__main__":
    run_and_end(partial(_main, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))

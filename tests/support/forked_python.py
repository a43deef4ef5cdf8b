"""The `python` of programs in tests, with PYTHON and ADDRESS before it: it asks for a fork instead of starting a module or code.

It starts in 0.02 s, because it imports little.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path

MODULES = {
    "distributed.cli.dask_scheduler",
    "distributed.cli.dask_worker",
    "dvc",
    "flows.child_process",
    "flows.cli",
    "flows.dvc_project.stage",
    "flows.evergreen",
    "flows.server.own",
    "prefect",
    "prefect.engine",
    "tasks",
    "tasks.inference.trial_process",
    "trainer.model.config_check",
    "trainer.runtime.launcher",
    "trainer.worker",
}
DIE_WITH_PARENT = {"flows.child_process", "trainer.worker"}
"""As trainer.runtime.lifetime lets them, and the stages that DVC starts."""


def is_alive(pid: str) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def main() -> None:
    command = sys.argv[2:] if sys.argv[1:2] == ["-u"] else sys.argv[1:]  # all forks are unbuffered
    module = command[1] if command[:1] == ["-m"] else None
    if module not in MODULES and command[:1] != ["-c"]:
        os.execv(PYTHON, [PYTHON, *sys.argv[1:]])  # type: ignore[name-defined]  # noqa: F821
    if module in DIE_WITH_PARENT or "DVC_STAGE" in os.environ:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG; the fork ends with this process
        if not is_alive(os.environ.get("FORKED_PID", "self")):  # it ended before the kernel could note that
            sys.exit(os.EX_TEMPFAIL)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(ADDRESS)  # type: ignore[name-defined]  # noqa: F821
    request = {
        "command": command[1:] if module else command,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "parent": os.getppid(),
        "file_size": resource.getrlimit(resource.RLIMIT_FSIZE),
    }
    message = json.dumps(request).encode()
    socket.send_fds(connection, [len(message).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(message)
    answers = connection.makefile()
    pid = int(answers.readline())

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)

    forwarded = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in forwarded:
        signal.signal(number, forward)
    status = int(answers.readline())
    for number in forwarded:
        signal.signal(number, signal.SIG_DFL)
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


main()

"""Start the processes of a training on one machine, end them, and receive signals that ask to stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

import psutil

from params.schema import Launch
from trainer.job import Job
from trainer.runtime import fork_server, forked
from trainer.runtime.launcher import REPORT
from trainer.runtime.lifetime import SUPERVISOR, die_with_parent

logger = logging.getLogger(__name__)

_GLOO = "GLOO_SOCKET_IFNAME"
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
END_S = 5.0
"""How long a process that has reported its error may take to end, and a launcher whose processes have all ended."""


def needs_launcher(launch: Launch) -> bool:
    """Whether accelerate's launcher starts the processes. It has nothing to tell a single one, and takes seconds to import."""
    return launch.num_processes > 1 or launch.accelerate_config is not None


def launch_command(launch: Launch, job_path: Path, machine: int = 0) -> list[str]:
    """Return the command that starts the processes of one machine.

    `--multi_gpu` is accelerate's name for starting more than one process. Without it, and without a GPU, accelerate
    starts one process whatever `--num_processes` says.
    """
    if not needs_launcher(launch):
        return [sys.executable, *forked.module_arguments("trainer.worker", str(job_path))]
    command = [sys.executable, "-m", "trainer.runtime.launcher"]
    if launch.accelerate_config:
        command += ["--config_file", launch.accelerate_config]
    elif launch.num_processes > 1:
        command += ["--multi_gpu"]
    if launch.num_machines > 1:
        command += ["--machine_rank", str(machine), "--main_process_ip", str(launch.main_process_ip)]
    port = launch.main_process_port if launch.num_machines > 1 else 0
    command += ["--main_process_port", str(port)]
    command += ["--num_processes", str(launch.num_processes), "--num_machines", str(launch.num_machines)]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    return [*command, "-m", "trainer.worker", str(job_path)]


def trainings_are_forked(launch: Launch) -> contextlib.AbstractContextManager[None]:
    """Let trainings that start in the block, one after the other, be forked from one process that imports the libraries meanwhile."""
    if needs_launcher(launch):
        return contextlib.nullcontext()
    return fork_server.running({**_UNBUFFERED, **os.environ}, fork_server.OF_TRAINING)


def start_processes(job: Job, job_path: Path, machine: int = 0) -> subprocess.Popen[bytes]:
    """Start the processes of one machine: the launcher, which starts them, or the only one.

    It leads a session of its own, so that neither Ctrl-C nor a signal to our process group reaches the ranks.
    """
    on_this_machine = job.launch.num_processes // job.launch.num_machines
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // on_this_machine)),
        "TOKENIZERS_PARALLELISM": "false",
        **_UNBUFFERED,
        **gloo_environment(job.launch),
        **os.environ,
        SUPERVISOR: str(os.getpid()),
        REPORT: str(launcher_report_path(job, machine)),
    }
    return subprocess.Popen(
        launch_command(job.launch, job_path, machine),
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def gloo_environment(launch: Launch) -> dict[str, str]:
    """Return the environment variables that processes need to find each other, and that keep those of one machine to it.

    gloo listens at the address of the machine's own name, which may be 127.0.0.1 or one that others reach. We name the
    network interface that leads to machine 0 instead, unless the user has set one; that of 127.0.0.1, if there is only one
    machine.
    """
    if _GLOO in os.environ:
        return {}
    place = (launch.main_process_ip, launch.main_process_port) if launch.num_machines > 1 else ("127.0.0.1", 9)
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing, only looks up the route
        own = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(address.address == own for address in addresses):
                return {_GLOO: name}
    return {}


def launcher_report_path(job: Job, machine: int = 0) -> Path:
    return job.folder / (f"machine-{machine}-launch.json" if machine else "launch.json")


def kill_processes(process: subprocess.Popen[bytes], known: Iterable[int] = ()) -> None:
    """Kill the launcher, its children, the processes `known`, and all that they started; each of them leads a session."""
    leaders = {process.pid, *known}
    if process.poll() is None:
        with contextlib.suppress(psutil.Error):
            leaders |= {child.pid for child in psutil.Process(process.pid).children()}
    process.kill()
    process.wait()
    give_up = time.monotonic() + END_S
    while left := _living_members(leaders):
        for member in left:
            with contextlib.suppress(psutil.Error):
                member.kill()
        if time.monotonic() > give_up:
            logger.warning("train: cannot end the processes %s", ", ".join(str(member.pid) for member in left))
            return
        time.sleep(0.02)


def _living_members(leaders: set[int]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) in leaders and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class ReceivedStopSignals:
    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        """The first of them; None until a signal comes."""
        self._interrupts = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.first = self.first or signal.Signals(number)
        self._interrupts += number == signal.SIGINT

    @property
    def is_urgent(self) -> bool:
        """Whether Ctrl-C was pressed twice."""
        return self._interrupts > 1


@contextlib.contextmanager
def collect_stop_signals() -> Iterator[ReceivedStopSignals]:
    """Collect SIGTERM and SIGINT instead of ending. Only Python's main thread gets signals; elsewhere none arrive."""
    signals = ReceivedStopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""How the machines of one training find each other: through a folder that all of them share, `.scratch/<recipe>/machines`.

    start.json         machine 0 announces a start of the training: it waits for the others, runs, failed or finished
    machine-<n>.ready  the start that machine n is ready for

Only then do the processes start, and meet at `launch.main_process_ip` by accelerate's own rendezvous. So a machine that is
late delays the start and breaks nothing, and a machine that comes back takes part in the next start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil

from params import TransientError
from params.foundation.artifacts import write_text_atomically
from params.schema import Launch, Section
from trainer.job import Job

logger = logging.getLogger(__name__)

POLL_S = 0.25
_GLOO = "GLOO_SOCKET_IFNAME"


class Announcement(Section):
    """A start of the training, as machine 0 announces it."""

    start: str
    """Unique name of the start."""
    job: Path
    """The job that the processes on every machine read."""
    state: Literal["waiting", "running", "failed", "finished"]


def read_announcement(folder: Path) -> Announcement | None:
    """Return what machine 0 announced last; None if it has not announced anything yet."""
    with contextlib.suppress(FileNotFoundError):
        return Announcement.model_validate_json((folder / "start.json").read_text(encoding="utf-8"), strict=False)
    return None


def report_ready(folder: Path, machine: int, announced: Announcement) -> None:
    """Tell machine 0 that `machine` is ready."""
    write_text_atomically(folder / f"machine-{machine}.ready", announced.start)


@contextlib.contextmanager
def rendezvous(job: Job, job_path: Path, stop_requested: Callable[[], bool]) -> Iterator[None]:
    """Wait for the other machines before the block, and announce after it how it ended. With one machine, do neither.

    `stop_requested` ends the wait when it returns true.

    Raises:
        TransientError: a machine did not come within `launch.stall_timeout_s`.
    """
    if job.launch.num_machines == 1:
        yield
        return
    folder = job.folder.parents[1] / "machines"
    start = Announcement(start=uuid.uuid4().hex, job=job_path, state="waiting")

    def announce(state: str) -> None:
        write_text_atomically(folder / "start.json", start.model_copy(update={"state": state}).model_dump_json())

    try:
        announce("waiting")
        _wait_for_all(folder, start, job.launch, stop_requested)
        announce("running")
        yield
    except BaseException:
        announce("failed")
        raise
    announce("finished")


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


def _wait_for_all(folder: Path, start: Announcement, launch: Launch, stop_requested: Callable[[], bool]) -> None:
    command = f"evergreen join params/{folder.parent.name}.yaml --machine"
    give_up = time.monotonic() + launch.stall_timeout_s
    logged: list[int] = []
    while missing := [n for n in range(1, launch.num_machines) if not _is_ready(folder, n, start)]:
        if missing != logged:
            logged = missing
            logger.info("train: waiting for %s: run `%s <n>` there", _named(missing), command)
        if stop_requested():
            return
        if time.monotonic() > give_up:
            what = f"{_named(missing)} did not come within {launch.stall_timeout_s:g} s"
            fix = f"run `{command} {missing[0]}` there and start again"
            raise TransientError.at("launch.num_machines", what, fix)
        time.sleep(POLL_S)
    logger.info("train: all %d machines are there", launch.num_machines)


def _is_ready(folder: Path, machine: int, start: Announcement) -> bool:
    path = folder / f"machine-{machine}.ready"
    return path.exists() and path.read_text(encoding="utf-8") == start.start


def _named(machines: list[int]) -> str:
    return f"machine{'s' * (len(machines) > 1)} {', '.join(map(str, machines))}"

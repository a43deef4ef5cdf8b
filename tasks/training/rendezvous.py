"""How the machines of one training find to each other: through a folder that all of them share, `.scratch/<recipe>/machines`.

    start.json        machine 0 says which start of the training it is about, and whether it calls, runs, failed or finished
    machine-<n>.json  machine n answers that it is ready for that start

Only then do the processes start and meet at `launch.main_process_ip`, by accelerate's own rendezvous. So a machine that is
late delays the start and breaks nothing, and one that comes back takes part in the next.
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
from params.artifacts import write_whole
from params.schema import Launch, Section
from trainer.job import Job

logger = logging.getLogger(__name__)

POLL_S = 0.25
_GLOO = "GLOO_SOCKET_IFNAME"


class Call(Section):
    """What machine 0 says to the others."""

    start: str
    """A name of its own for every start."""
    job: Path
    """The job, as the processes on every machine read it."""
    state: Literal["calling", "running", "failed", "finished"]


class Answer(Section):
    """What another machine says to machine 0."""

    start: str
    """The start that it is ready for."""
    host: str


def folder(scratch: Path) -> Path:
    """Where the machines meet that train the recipe whose unfinished work is in `scratch`."""
    return scratch / "machines"


def read_call(place: Path) -> Call | None:
    """What machine 0 said last; None when it has not said anything yet."""
    with contextlib.suppress(FileNotFoundError):
        return Call.model_validate_json((place / "start.json").read_text(encoding="utf-8"), strict=False)
    return None


def answer(place: Path, machine: int, call: Call) -> None:
    """Tell machine 0 that `machine` is ready."""
    said = Answer(start=call.start, host=os.uname().nodename)
    write_whole(place / f"machine-{machine}.json", said.model_dump_json())


@contextlib.contextmanager
def rendezvous(job: Job, job_path: Path, is_asked_to_stop: Callable[[], bool]) -> Iterator[None]:
    """Wait for the other machines before the block, and tell them after it how it ended. Alone, do neither.

    Args:
        job: the training.
        job_path: the file that all of its processes read.
        is_asked_to_stop: ends the waiting.

    Raises:
        TransientError: a machine did not come within `launch.stall_timeout_s`.
    """
    if job.launch.num_machines == 1:
        yield
        return
    place = folder(job.folder.parents[1])
    call = Call(start=uuid.uuid4().hex, job=job_path, state="calling")

    def say(state: str) -> None:
        write_whole(place / "start.json", call.model_copy(update={"state": state}).model_dump_json())

    try:
        say("calling")
        _wait_for_all(place, call, job.launch, is_asked_to_stop)
        say("running")
        yield
    except BaseException:
        say("failed")
        raise
    say("finished")


def environment(launch: Launch) -> dict[str, str]:
    """What the processes have to be told to find those on other machines.

    gloo listens at the address of the machine's own name, which often is 127.0.0.1; here it is told the interface that
    leads to machine 0. A setting of the user's own wins.
    """
    if launch.num_machines == 1 or _GLOO in os.environ:
        return {}
    assert launch.main_process_ip
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((launch.main_process_ip, launch.main_process_port))  # sends nothing, only asks for the way
        own = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(address.address == own for address in addresses):
                return {_GLOO: name}
    return {}


def _wait_for_all(place: Path, call: Call, launch: Launch, is_asked_to_stop: Callable[[], bool]) -> None:
    command = f"python -m tasks join params/{place.parent.name}.yaml --machine"
    give_up = time.monotonic() + launch.stall_timeout_s
    waited_for: list[int] = []
    while missing := [n for n in range(1, launch.num_machines) if not _is_ready(place, n, call)]:
        if missing != waited_for:
            waited_for = missing
            logger.info("train: waits for %s: `%s <n>` brings it in", _named(missing), command)
        if is_asked_to_stop():
            return
        if time.monotonic() > give_up:
            what = f"{_named(missing)} did not come within {launch.stall_timeout_s:g} s"
            raise TransientError("launch.num_machines", what, f"run `{command} {missing[0]}` there and start again")
        time.sleep(POLL_S)
    logger.info("train: all %d machines are there", launch.num_machines)


def _is_ready(place: Path, machine: int, call: Call) -> bool:
    with contextlib.suppress(FileNotFoundError):
        said = Answer.model_validate_json((place / f"machine-{machine}.json").read_text(encoding="utf-8"))
        return said.start == call.start
    return False


def _named(machines: list[int]) -> str:
    return f"machine{'s' * (len(machines) > 1)} {', '.join(map(str, machines))}"

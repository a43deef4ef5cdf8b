"""Run a command whose life is bound to ours: it ends with this process, however this process ends.

    flow --start--> python -m flows.child_process <pid> dvc ... --start--> stage --start--> trainer

The command gets a process group of its own. When the flow is told to stop, so is the whole group: SIGTERM, a grace in
which a trainer writes its checkpoint, SIGKILL. When the flow is killed, the kernel kills the command, and the stage
below dies with the command in the same way (`die_with_parent`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import runpy
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TypeAlias

import psutil

from trainer.runtime.lifetime import die_with_parent

Logger: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"

GRACE_S = 20.0
"""Time between asking a command to stop and killing it, unless it asks for more; a Prefect worker gives the flow itself
30 s."""
_KEPT_LINES = 400


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and the last lines that it wrote."""

    status: int
    """Exit status; negative when a signal ended it."""
    lines: tuple[str, ...]


def start(module: str, arguments: Sequence[str], output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `python -m module arguments`, bound to this process.

    The kernel takes the end of the *thread* that started a command for the end of its parent: wait in the same one.
    """
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return subprocess.Popen(
        [sys.executable, "-m", "flows.child_process", str(os.getpid()), module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PATH": search, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def run(module: str, arguments: Sequence[str], log: Logger, *, grace_s: float = GRACE_S) -> Outcome:
    """Run `python -m module arguments` to its end, and log each of its lines as it comes.

    Whatever ends the wait, a signal or a cancelled flow, also ends the command, within `grace_s`.
    """
    process = start(module, arguments, subprocess.PIPE)
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        for line in _lines(process):
            lines.append(line)
            if line.strip():
                log.info(line)
        return Outcome(process.wait(), tuple(lines))
    except BaseException:  # cancelled, SIGTERM, Ctrl-C
        stop(process, grace_s)
        for line in filter(str.strip, _lines(process)):  # how far it came
            log.info(line)
        raise
    finally:
        _signal_group(process, signal.SIGKILL)  # whatever ended its leader, nobody of the group stays behind
        assert process.stdout is not None
        process.stdout.close()


def stop(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """End a command and its group: ask, wait for at most `grace_s`, kill."""
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """What a command writes, by lines, until it ends; a grandchild that keeps the pipe open is not waited for."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            if selector.select(timeout=0 if ended else 0.5):
                chunk = os.read(process.stdout.fileno(), 65536)
                *whole, rest = re.split(rb"[\r\n]", rest + chunk)
                yield from (line.decode(errors="replace") for line in whole)
                if not chunk:
                    break
            elif ended:
                break
    if rest:
        yield rest.decode(errors="replace")


def _on_sigterm(number: int, _: FrameType | None) -> None:
    """DVC has no answer to SIGTERM and would leave its stage behind: let the stage end first, it got the signal too."""
    if not psutil.Process().children():
        sys.exit(128 + number)


def _main() -> None:
    parent, module, *arguments = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):  # it ended before the kernel knew that we care
        sys.exit(os.EX_TEMPFAIL)
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()

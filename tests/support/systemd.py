"""The units of docs/systemd, and what systemd does with them, for tests on machines that it does not run."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from tests.support.project import ROOT

UNITS = ROOT / "docs" / "systemd"
PROJECT = "/srv/evergreen"


class Unit:
    """What a unit says: its environment, its command, and how it ends."""

    def __init__(self, name: str) -> None:
        self.text = (UNITS / name).read_text(encoding="utf-8")

    def values(self, key: str) -> list[str]:
        """All values of a key, in order."""
        return re.findall(rf"^{key}=(.*)$", self.text, re.MULTILINE)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the unit sets, those of its files aside."""
        return dict(pair.split("=", 1) for line in self.values("Environment") for pair in shlex.split(line))

    @property
    def command(self) -> list[str]:
        """The command, with `prefect` from the path instead of the project's, as instance 1 on the machine `here`."""
        (line,) = self.values("ExecStart")
        return shlex.split(line.replace(f"{PROJECT}/.venv/bin/", "").replace("%H", "here").replace("%i", "1"))

    @property
    def timeout_s(self) -> float:
        """Seconds between the request to stop and SIGKILL."""
        (value,) = self.values("TimeoutStopSec")
        return float(value)


def stop(main: subprocess.Popen[bytes], group: Callable[[], Iterable[psutil.Process]], timeout_s: float) -> None:
    """Stop a service as systemd does with KillMode=control-group.

    SIGTERM to all of its processes; the same again when its main process has ended; and SIGKILL to what is left
    `timeout_s` later.
    """
    _signal(group(), signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        main.wait(timeout_s)
        left = list(group())
        _signal(left, signal.SIGTERM)
        psutil.wait_procs(left, timeout=timeout_s)
    _signal(group(), signal.SIGKILL)
    main.wait()


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)

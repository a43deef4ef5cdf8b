"""The units of docs/systemd, and what systemd does with them, for tests on machines that it does not run.

unit = Unit("prefect-server.service", project=clone, state=folder)
server = subprocess.Popen(unit.command, env=unit.environment, cwd=clone)
assert unit.stop(server) == []
"""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import subprocess
from pathlib import Path

import psutil

from tests.support.project import ROOT

UNITS = ROOT / "docs" / "systemd"


class Unit:
    """What a unit says, instance 1 of it on the machine `here`, installed where this test has its folders.

    Args:
        name: the file in docs/systemd.
        project: what /srv/evergreen is.
        state: what /var/lib is.
    """

    def __init__(self, name: str, *, project: Path, state: Path) -> None:
        text = (UNITS / name).read_text(encoding="utf-8")
        self.text = text.replace("/srv/evergreen", str(project)).replace("/var/lib", str(state))
        self.name = name
        self._state = state

    def values(self, key: str) -> list[str]:
        """All values of a key, in order."""
        return re.findall(rf"^{key}=(.*)$", self.text, re.MULTILINE)

    @property
    def environment(self) -> dict[str, str]:
        """All variables that the service has, those of its files aside; HOME is its user's."""
        set_here = dict(pair.split("=", 1) for line in self.values("Environment") for pair in shlex.split(line))
        (user,) = self.values("User")
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self._state / user), **set_here}

    @property
    def command(self) -> list[str]:
        """The command."""
        (line,) = self.values("ExecStart")
        return shlex.split(line.replace("%H", "here").replace("%i", "1"))

    @property
    def timeout_s(self) -> float:
        """Seconds between the request to stop and SIGKILL."""
        (value,) = self.values("TimeoutStopSec")
        return float(value)

    def stop(self, service: subprocess.Popen[bytes]) -> list[str]:
        """Stop a service as systemd does.

        ExecStop comes first, then SIGTERM to all processes, the same again when the first one has ended, and SIGKILL at last.

        Returns:
            The command lines of the processes that did not end by themselves in time.
        """
        for line in self.values("ExecStop"):
            environment = self.environment | {"MAINPID": str(service.pid)}
            subprocess.run(shlex.split(line.removeprefix("-")), env=environment, timeout=self.timeout_s)
        children = psutil.Process(service.pid).children(recursive=True)
        _signal([psutil.Process(service.pid), *children], signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.wait(self.timeout_s)
        _signal(children, signal.SIGTERM)
        _, left = psutil.wait_procs(children, self.timeout_s)
        names = [" ".join(process.cmdline()) for process in left]
        if service.poll() is None:
            names.append(shlex.join(map(str, service.args)))
            service.kill()
        _signal(left, signal.SIGKILL)
        service.wait()
        return names


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)

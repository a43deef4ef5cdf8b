"""The memory of a child process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.support.project import ROOT


def peak_anonymous_mib(code: str, *arguments: str, **environment: str) -> float:
    """Run code in a child process and return the peak of its anonymous memory; mapped files do not count."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.005)
    assert process.wait() == 0, process.stdout.read().decode()
    process.stdout.close()
    return peak / 1024

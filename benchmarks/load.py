"""Run a command beside programs that compute all the time, to see what it does on a machine that is not idle.

python -m benchmarks.load <programs> <command> [arguments]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_COMPUTE = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(10**6))"
"""Until the process that has started it is gone."""


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Keep so many processes busy during the block; each has one thread and takes hardly any memory."""
    started = [subprocess.Popen([sys.executable, "-S", "-c", _COMPUTE, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    with busy_programs(int(sys.argv[1])):
        sys.exit(subprocess.run(sys.argv[2:], check=False).returncode)

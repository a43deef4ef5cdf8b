"""accelerate's own launcher, run in this process: `python -m trainer.runtime.launcher <arguments of accelerate launch>`.

When a process of the training fails, accelerate prints a traceback and exits with the same status whatever happened.
Here the supervisor gets a file instead: which rank failed first and how, or why the launcher itself failed (a
configuration that it refuses, for example). Only unexpected errors are printed, in full.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REPORT = "EVERGREEN_LAUNCH_REPORT"
"""Environment variable: path of the file for the report of a failed start."""


@dataclass(frozen=True)
class Failure:
    """A process of the training that failed."""

    rank: int
    pid: int | None
    """None if the training has only one process: accelerate does not report its id."""
    exit_code: int
    """Exit code; the negative signal number if a signal ended it."""


@dataclass(frozen=True)
class LaunchReport:
    """Why a start of a training failed."""

    failures: tuple[Failure, ...] = ()
    """In order of time, with the processes that the launcher ended because of the first."""
    error: str | None = None
    """Error of the launcher itself."""

    @classmethod
    def load(cls, path: Path) -> LaunchReport:
        """Read the report at `path`; it is empty if the launcher did not write one."""
        if not path.exists():
            return cls()
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(tuple(Failure(**failure) for failure in content["failures"]), content["error"])

    def save(self, path: Path) -> None:
        """Write the report in one step, if the disk has room for it; the heartbeats say the rest."""
        partial = path.with_suffix(".part")
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
            partial.rename(path)


def main(arguments: Sequence[str]) -> int:
    """Launch a training and wait for its end; return 1 if one of its processes failed."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from trainer.runtime import loopback

    # It prints at length what the supervisor says in one line.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").disabled = True
    report = Path(os.environ[REPORT])
    parsed = launch_command_parser().parse_args(arguments)
    if parsed.num_machines == 1:
        loopback.register()
        parsed.rdzv_backend, parsed.rdzv_endpoint = loopback.BACKEND, f"{loopback.ADDRESS}:0"
    try:
        launch_command(parsed)
    except ChildFailedError as error:
        by_time = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        LaunchReport(tuple(Failure(rank, f.pid, f.exitcode) for rank, f in by_time)).save(report)
        return 1
    except subprocess.CalledProcessError as error:
        LaunchReport((Failure(0, None, error.returncode),)).save(report)
        return 1
    except SignalException as error:  # accelerate has passed the signal on, and the ranks have ended
        LaunchReport(error=str(error)).save(report)
        return 1
    except Exception as error:
        LaunchReport(error=f"{type(error).__name__}: {error}").save(report)
        if isinstance(error, ValueError | OSError):  # about the configuration or a port: the message is enough
            return 1
        raise
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

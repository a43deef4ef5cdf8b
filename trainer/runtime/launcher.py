"""accelerate's own launcher, run in this process: `python -m trainer.runtime.launcher <arguments of accelerate launch>`.

When a process of the training fails, accelerate prints a traceback and exits with the same status whatever happened.
Here the supervisor gets a file instead: which rank failed first and how, or why the launcher itself failed (a
configuration that it refuses, for example). Only unexpected errors are printed, in full.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from params import StorageError
from params.foundation.artifacts import write_text_atomically
from params.sections.base import Section

REPORT = "EVERGREEN_LAUNCH_REPORT"
"""Environment variable: path of the file for the report of a failed start."""


class RankFailure(Section):
    """A process of the training that failed."""

    rank: int
    pid: int | None
    """None if the training has only one process: accelerate does not report its id."""
    exit_code: int
    """Exit code; the negative signal number if a signal ended it."""


class LaunchFailureReport(Section):
    """Why a start of a training failed."""

    failures: tuple[RankFailure, ...] = ()
    """In order of time, with the processes that the launcher ended because of the first."""
    error: str | None = None
    """Error of the launcher itself."""

    @classmethod
    def load(cls, path: Path) -> LaunchFailureReport:
        """Read the report at `path`; it is empty if the launcher did not write one."""
        return cls.model_validate_json(path.read_bytes()) if path.exists() else cls()

    def save(self, path: Path) -> None:
        """Write the report, if the disk has room for it; the heartbeats say the rest."""
        with contextlib.suppress(StorageError):
            write_text_atomically(path, self.model_dump_json())


def main(arguments: Sequence[str]) -> int:
    """Launch a training and wait for its end; return 1 if one of its processes failed."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    from trainer.runtime import loopback

    # It prints at length what the supervisor says in one line.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").disabled = True
    report = Path(os.environ[REPORT])
    parsed = launch_command_parser().parse_args(arguments)
    if parsed.num_machines == 1:
        rendezvous_handler_registry.register(loopback.BACKEND, loopback.LoopbackRendezvous)
        parsed.rdzv_backend, parsed.rdzv_endpoint = loopback.BACKEND, f"{loopback.ADDRESS}:0"
    try:
        with tempfile.TemporaryDirectory(prefix="evergreen-launcher-") as logs:  # torch does not delete its own
            parsed.log_dir = parsed.log_dir or logs
            launch_command(parsed)
    except ChildFailedError as error:
        by_time = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        failures = tuple(RankFailure(rank=rank, pid=f.pid, exit_code=f.exitcode) for rank, f in by_time)
        LaunchFailureReport(failures=failures).save(report)
        return 1
    except subprocess.CalledProcessError as error:
        LaunchFailureReport(failures=(RankFailure(rank=0, pid=None, exit_code=error.returncode),)).save(report)
        return 1
    except Exception as error:
        LaunchFailureReport(error=f"{type(error).__name__}: {error}").save(report)
        # a signal, which accelerate has passed on; or about the configuration or a port: the message is enough
        if isinstance(error, SignalException | ValueError | OSError):
            return 1
        raise
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

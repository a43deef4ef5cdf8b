"""accelerate's own launcher, run in this process: `python -m trainer.runtime.launcher <arguments of accelerate launch>`.

accelerate ends with a traceback when a process of the training failed, and with the same exit status whatever happened
to it. Here the supervisor gets a file instead: which rank failed first, and how; or what the launcher itself could not
do, a configuration that it refuses for instance. Only what nobody expects stands on the screen, in full.
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
"""Environment variable: the file that takes the report of a start that failed."""


@dataclass(frozen=True)
class Failure:
    """A process of the training that did not end as it should."""

    rank: int
    pid: int | None
    """None for the only process of a training: accelerate does not tell."""
    exit_code: int
    """Exit status; negative when a signal ended it."""


@dataclass(frozen=True)
class LaunchReport:
    """Why a start of a training failed."""

    failures: tuple[Failure, ...] = ()
    """In order of time. Those that the launcher ended because of the first are among them."""
    error: str | None = None
    """What went wrong in the launcher itself."""

    @classmethod
    def load(cls, path: Path) -> LaunchReport:
        """The report in `path`; an empty one when the launcher did not come to write it."""
        if not path.exists():
            return cls()
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(tuple(Failure(**failure) for failure in content["failures"]), content["error"])

    def save(self, path: Path) -> None:
        """Write the report, whole or not at all: on a full disk only the heartbeats, which have their room, can tell."""
        aside = path.with_suffix(".part")
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps(asdict(self)), encoding="utf-8")
            aside.rename(path)


def main(arguments: Sequence[str]) -> int:
    """Launch a training and wait for its end; the return value is 1 when one of its processes failed."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # It tells on the screen, with tracebacks to look up, what the supervisor is about to say in one line.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").disabled = True
    report = Path(os.environ[REPORT])
    try:
        launch_command(launch_command_parser().parse_args(arguments))
    except ChildFailedError as error:
        by_time = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        LaunchReport(tuple(Failure(rank, f.pid, f.exitcode) for rank, f in by_time)).save(report)
        return 1
    except subprocess.CalledProcessError as error:
        LaunchReport((Failure(0, None, error.returncode),)).save(report)
        return 1
    except SignalException as error:  # it has passed the signal on to the ranks, and they have ended
        LaunchReport(error=str(error)).save(report)
        return 1
    except Exception as error:
        LaunchReport(error=f"{type(error).__name__}: {error}").save(report)
        if isinstance(error, ValueError | OSError):  # its words say it all: a configuration, a port
            return 1
        raise
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

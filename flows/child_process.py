"""Run a command that ends with this process, however this process ends, and read the error that it reports.

    flow --starts--> python -m flows.child_process <pid> flows.dvc_project.stage ... --starts--> stage --starts--> trainer

The command leads a process group. When the flow is asked to stop, the whole group is: SIGTERM, a grace period in which a
trainer writes its checkpoint, SIGKILL. When the flow is killed, the kernel kills the command, and the stage below it ends
in the same way (`die_with_parent`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Final, TypeAlias

import psutil

from params.foundation import command_result
from params.foundation.artifacts import Artifacts
from params.foundation.secrets import lines_without_secrets
from trainer.runtime import fork_server, forked
from trainer.runtime.lifetime import die_with_parent, signal_process_group, stop_process_group

Logger: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"

MODULES_OF_STAGES: Final = (
    *("dvc.repo", "dvc.commands.repro", "dvc.rwlock", "dvc.stage.exceptions", "dvc.utils.strictyaml", "dvc.parsing"),
    *("dvc.scm", "dvc.repo.open_repo", "dvc.repo.artifacts", "dvc.repo.datasets", "dvc.repo.metrics", "dvc.repo.plots"),
    *("dvc.cachemgr", "dvc.data_cloud", "dvc_data.hashfile.db.local", "scmrepo.git", "dulwich.worktree"),
    *("fsspec.implementations.memory", "typer", "pydantic", "ruamel.yaml.mergevalue", "psutil", "jinja2", "xxhash"),
    *("numpy", "pandas", "pyarrow.parquet", "huggingface_hub.hf_api", "scipy.stats", "scipy.optimize"),
    *("tasks.validation.gx", "transformers", "tokenizers.processors", *fork_server.TORCH, "matplotlib.figure"),
    *("matplotlib.backends.backend_svg", "markdown_it", "fastapi", "uvicorn.loops.asyncio"),
    *("uvicorn.protocols.http.auto", "dulwich.repo"),
)
"""What the stages import, in the order in which a run needs it."""
GRACE_S = 20.0  # seconds between SIGTERM and SIGKILL for most commands; a Prefect worker gives the flow itself 30 s


def start_python_module(
    module: str, arguments: Sequence[str], output: int | IO[bytes], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m module arguments`, to end with this process.

    The kernel kills the command when the *thread* that started it ends: wait in the same thread.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "flows.child_process", str(os.getpid()), module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**_environment(), **(environment or {})},
        start_new_session=True,
    )


def fork_modules() -> contextlib.AbstractContextManager[None]:
    """Let the modules that `run_python_module` runs in the block, and the stages that they start, be forked with their libraries."""
    return fork_server.running(_environment(), MODULES_OF_STAGES)


def _environment() -> dict[str, str]:
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": search, "PYTHONUNBUFFERED": "1"}


def run_python_module(
    module: str,
    arguments: Sequence[str],
    artifacts: Artifacts,
    log: Logger,
    *,
    name: str,
    grace_s: float = GRACE_S,
    limit_s: float = math.inf,
) -> bool:
    """Run `python -m module arguments` to its end, and log each of its lines at once, without secrets.

    Whatever ends the wait, a signal, a cancelled flow or the limit, also ends the command, within `grace_s`.

    Returns:
        Whether it reported that it ran.

    Raises:
        EvergreenError: the error that it reported; `name` says where.
        subprocess.TimeoutExpired: it took longer than `limit_s`.
        KeyboardInterrupt: Ctrl-C was pressed; it says what is kept.
    """
    process = start_python_module(
        module, arguments, subprocess.PIPE, command_result.preallocate_result_file(artifacts.command_result)
    )
    assert process.stdout is not None
    last = ""
    try:
        for line in lines_without_secrets(filter(str.strip, _lines(process, limit_s))):
            last = line
            log.info(line)
        status = process.wait()
    except BaseException as error:  # cancelled, SIGTERM, Ctrl-C, too long
        stop_process_group(process, grace_s)
        for line in lines_without_secrets(filter(str.strip, _lines(process))):  # what it wrote while it stopped
            log.info(line)
        if isinstance(error, KeyboardInterrupt):
            ended = command_result.read_result_file(artifacts.command_result)
            kept = ended.error.fix if ended and ended.error else "start again: what has ended is kept"
            raise KeyboardInterrupt(f"{name}\n  {kept}") from None
        raise
    finally:
        signal_process_group(process, signal.SIGKILL)  # its leader has ended; nothing of its group stays behind
        process.stdout.close()
    result = command_result.read_result_file(artifacts.command_result)
    if status:
        raise command_result.error_of_failed_command(
            name, status, last, result, artifacts.stage_log(name.partition("@")[0])
        )
    return result is not None


def _lines(process: subprocess.Popen[bytes], limit_s: float = math.inf) -> Iterator[str]:
    """Yield the lines that a command writes until it ends, although a grandchild may keep the pipe open."""
    assert process.stdout is not None
    rest, deadline = b"", time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            if not ended and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, limit_s)
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
    """Wait for the children, which got the signal too: DVC does not handle SIGTERM and would leave its stage behind."""
    if not psutil.Process().children():
        sys.exit(128 + number)


def _main() -> None:
    parent, module, *arguments = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):  # it ended before the kernel could note that we die with it
        sys.exit(os.EX_TEMPFAIL)
    fork_server.hand_over("flows.child_process", "run_as_main", module, *arguments)
    run_as_main(module, *arguments)


def run_as_main(module: str, *arguments: str) -> None:
    """Run a module in this process, as `python -m module arguments` does, and let SIGTERM end its children first."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    forked.run_as_main(module, *arguments)


if __name__ == "__main__":
    _main()

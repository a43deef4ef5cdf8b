"""`python -m trainer.runtime.forked MODULE ARGUMENT ...`: as `python -m MODULE ARGUMENT ...`, but as a fork where a server offers one.

With `-c CODE FILE ...`, it is the server of multiprocessing, from which this machine's processes for shards are forked.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.runtime import fork_server
from trainer.runtime.lifetime import SUPERVISOR, die_with_parent, is_fork


def module_arguments(module: str, *arguments: str) -> list[str]:
    """Return the arguments for Python that run a module, as a fork if there is a server."""
    has_server = os.environ.get(fork_server.VARIABLE, "none") != "none"
    return ["-m", *([__name__] if has_server else []), module, *arguments]


def run_as_main(module: str, *arguments: str) -> None:
    """Run a module in this process, as `python -m module arguments` does."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


@contextlib.contextmanager
def multiprocessing_server_is_forked() -> Iterator[None]:
    """Let a fork start multiprocessing's server in the block as a fork, too, with the libraries that it would import in seconds."""
    from multiprocessing import util

    spawn = util.spawnv_passfds

    def start(python: Any, command: Any, files: Sequence[int]) -> int:
        *options, _, code = command
        return spawn(python, [*options, "-m", __name__, "-c", code, *map(str, files)], files)

    if is_fork():
        vars(util)["spawnv_passfds"] = start
    try:
        yield
    finally:
        vars(util)["spawnv_passfds"] = spawn


def serve_forks(code: str, *files: Any) -> None:
    """Run the code that starts multiprocessing's server; its descriptors, and then the numbers that they have here."""
    from multiprocessing import forkserver

    here, main = dict(zip(map(int, files[: len(files) // 2]), files[len(files) // 2 :], strict=True)), forkserver.main

    def main_here(listener: int, alive: int, *arguments: Any, **more: Any) -> None:
        if "authkey_r" in more:  # since Python 3.14
            more["authkey_r"] = here[more["authkey_r"]]
        main(here[listener], here[alive], *arguments, **more)

    vars(forkserver)["main"] = main_here
    exec(code, {})  # noqa: S102 - multiprocessing has made it


if __name__ == "__main__":
    die_with_parent(ancestors=[int(os.environ[SUPERVISOR])] if SUPERVISOR in os.environ else [])
    if sys.argv[1] == "-c":
        code, *numbers = sys.argv[2:]
        fork_server.hand_over("trainer.runtime.forked", "serve_forks", code, *numbers, files=[*map(int, numbers)])
        serve_forks(code, *numbers, *map(int, numbers))
    else:
        fork_server.hand_over("trainer.runtime.forked", "run_as_main", *sys.argv[1:])
        run_as_main(*sys.argv[1:])

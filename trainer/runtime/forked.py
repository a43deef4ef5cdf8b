"""`python -m trainer.runtime.forked MODULE ARGUMENT ...`: as `python -m MODULE ARGUMENT ...`, but as a fork where a server offers one."""

from __future__ import annotations

import os
import runpy
import sys

from trainer.runtime import fork_server
from trainer.runtime.lifetime import SUPERVISOR, die_with_parent


def module_arguments(module: str, *arguments: str) -> list[str]:
    """Return the arguments for Python that run a module, as a fork if there is a server."""
    has_server = os.environ.get(fork_server.VARIABLE, "none") != "none"
    return ["-m", *([__name__] if has_server else []), module, *arguments]


def run_as_main(module: str, *arguments: str) -> None:
    """Run a module in this process, as `python -m module arguments` does."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    die_with_parent(ancestors=[int(os.environ[SUPERVISOR])] if SUPERVISOR in os.environ else [])
    fork_server.hand_over("trainer.runtime.forked", "run_as_main", *sys.argv[1:])
    run_as_main(*sys.argv[1:])

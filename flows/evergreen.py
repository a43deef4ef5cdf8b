"""The program `evergreen`: the commands of flows.cli."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run a command, and end this process with its exit status."""
    from trainer.runtime.lifetime import run_and_end

    run_and_end(_run)


def _run() -> int:
    """Until the command is imported, Ctrl-C ends the process by the signal, without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not in the background, where a shell lets it be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "_EVERGREEN_COMPLETE" not in os.environ:  # then a shell reads what this writes
        from trainer.reporting.signs_of_life import start_signs_of_life
        from trainer.runtime.memory import reduce_garbage_collection

        start_signs_of_life(" ".join(sys.argv[1:2]) or "evergreen")
        reduce_garbage_collection()
    from flows import cli

    signal.signal(signal.SIGINT, before)
    return cli.main()


if __name__ == "__main__":
    main()

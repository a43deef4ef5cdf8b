"""The program `evergreen`: the commands of flows.cli."""

from __future__ import annotations

import signal


def main() -> int:
    """Run a command and return its exit status. Until it is imported, Ctrl-C ends the process by the signal, without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not in the background, where a shell lets it be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from flows import cli

    signal.signal(signal.SIGINT, before)
    return cli.main()

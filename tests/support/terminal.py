"""A command on a terminal of its own: what it prints there, what somebody types, Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

CTRL_C = "\x03"


class Terminal:
    """The terminal of a command that runs; `output` is what it has printed, with all control characters; `descriptor` is our end of it."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.output = ""
        self.process = process
        self.descriptor = ours

    def wait_for(self, text: str, timeout_s: float = 400) -> None:
        """Read until the command prints `text`."""
        self._read(timeout_s, until=text)
        assert text in self.output, f"waited for {text!r}\n{self.output}"

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self.descriptor, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C once the command sleeps.

        Python sees a signal between two of its steps. One that comes after the last step before a read of the terminal waits for the
        next key, so Ctrl-C pressed with the question's last character can go unseen.
        """
        asleep = 0
        while asleep < 5:  # half a second without work: it reads
            time.sleep(0.1)
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            asleep = asleep + 1 if state == "S" else 0
        self.type(CTRL_C)

    def end(self, timeout_s: float = 400) -> int:
        """Read to the end of the command; its exit status."""
        self._read(timeout_s)
        return self.process.wait(10)

    def _read(self, timeout_s: float, until: str | None = None) -> None:
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up and (until is None or until not in self.output):
            if select.select([self.descriptor], [], [], 0.5)[0]:
                try:
                    read = os.read(self.descriptor, 65536)
                except OSError:  # the terminal is closed
                    return
                self.output += read.decode(errors="replace")


@contextlib.contextmanager
def terminal(*command: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Start a command on a terminal of 120 columns, where Ctrl-C reaches it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)

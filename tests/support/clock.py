"""How long a command is silent: everything it writes, with the second, through a pipe or on a terminal.

python -m tests.support.clock [--terminal] evergreen check default
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.terminal import terminal

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What moves the cursor and colours, which nobody reads."""


@dataclass(frozen=True)
class Heard:
    """What a command wrote: `parts` are (seconds since its start, text); `status` is how it ended, `seconds` when."""

    parts: Sequence[tuple[float, str]]
    status: int
    seconds: float

    @property
    def lines(self) -> list[str]:
        """What stays to be read, without blank lines."""
        text = CONTROL.sub("", "".join(text for _, text in self.parts)).replace("\r\n", "\n")
        return [line for part in text.split("\n") if (line := part.rpartition("\r")[2]).strip()]

    @property
    def silences(self) -> list[tuple[float, str]]:
        """Each silence in seconds with the last text before it, the longest first."""
        times = [0.0, *(second for second, _ in self.parts), self.seconds]
        before = ["the start", *(text.strip()[-200:] for _, text in self.parts)]
        gaps = [after - at for at, after in itertools.pairwise(times)]
        return sorted(zip(gaps, before, strict=True), reverse=True)


def listen(
    *command: str, folder: Path, environment: Mapping[str, str], on_terminal: bool = False, timeout_s: float = 600
) -> Heard:
    """Run a command to its end, and note when it writes what."""
    parts: list[tuple[float, str]] = []
    start = time.monotonic()
    with _output(command, folder, environment, on_terminal) as (process, descriptor):
        while time.monotonic() < start + timeout_s:
            if select.select([descriptor], [], [], 0.5)[0]:
                try:
                    read = os.read(descriptor, 65536)
                except OSError:  # the terminal is closed
                    break
                if not read:
                    break
                parts.append((time.monotonic() - start, read.decode(errors="replace")))
        status = process.wait(30)
    return Heard(parts, status, time.monotonic() - start)


@contextlib.contextmanager
def _output(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], on_terminal: bool
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a command; yield it and the descriptor from which its output comes."""
    if on_terminal:
        with terminal(*command, folder=folder, environment=environment) as seen:
            yield seen.process, seen.descriptor
        return
    with subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.fileno()


def _main(arguments: Sequence[str]) -> int:
    on_terminal = arguments[:1] == ["--terminal"]
    heard = listen(
        *arguments[on_terminal:], folder=Path(), environment=os.environ, on_terminal=on_terminal, timeout_s=900
    )
    for second, text in heard.parts:
        for line in CONTROL.sub("", text).splitlines():
            if line.strip():
                print(f"{second:7.2f}  {line}")
    print(f"{heard.seconds:7.2f}  ended with {heard.status}: {len(heard.lines)} lines; the longest silences:")
    for gap, before in heard.silences[:6]:
        print(f"{gap:9.2f} s after {before.splitlines()[-1:]}")
    return heard.status


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))

"""Text of rows, files and servers as a terminal may show it: nothing in it can move the cursor, change settings or reorder a line."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, controls of direction, other ends of lines, and halves of surrogate pairs."""


def printable(text: str) -> str:
    r"""Return the text with such characters as escapes, `\u001b` for example; in JSON they mean the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class PrintableStream:
    """Another stream, to which only printable text is written."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        """For what may control the terminal, such as a bar."""

    def write(self, text: str) -> int:
        """Write the text as `printable` returns it."""
        self.stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each text."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def make_stdout_printable() -> AbstractContextManager[Any]:
    """Let standard output be a `PrintableStream`."""
    return contextlib.redirect_stdout(PrintableStream(sys.stdout))


def discard_output_without_reader() -> bool:
    """Return whether what read standard output has ended, such as `head`; then nothing more is written there, not even at exit."""
    with contextlib.suppress(io.UnsupportedOperation):
        descriptor, poll = sys.stdout.fileno(), select.poll()
        poll.register(descriptor, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - no path of a user
                os.dup2(nowhere.fileno(), descriptor)
            return True
    return False

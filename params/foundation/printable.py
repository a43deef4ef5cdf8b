"""Text of rows, files and servers as a terminal may show it: nothing in it can move the cursor, change settings or reorder a line."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, controls of direction, other ends of lines, and halves of surrogate pairs."""


def printable(text: str) -> str:
    r"""Return the text with such characters as escapes, `\u001b` for example; in JSON they mean the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class PrintableStream:
    """Another stream, to which only printable text is written; and nothing more, once that fails, as on a full disk."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        """For what may control the terminal, such as a bar."""
        self.error: OSError | None = None
        """Why something that was written is lost."""

    def write(self, text: str) -> int:
        self._do(self.stream.write, printable(text))
        return len(text)

    def flush(self) -> None:
        """Write what is still in memory."""
        self._do(self.stream.flush)

    def _do(self, action: Callable[..., Any], *arguments: str) -> None:
        try:
            action(*arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.error = error
            discard_output(self.stream)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def make_stdout_printable() -> AbstractContextManager[PrintableStream]:
    """Let standard output be a `PrintableStream`."""
    return contextlib.redirect_stdout(PrintableStream(sys.stdout))


def discard_output_without_reader() -> bool:
    """Return whether what read standard output has ended, such as `head`; then nothing more is written there, not even at exit."""
    with contextlib.suppress(io.UnsupportedOperation):
        descriptor, poll = sys.stdout.fileno(), select.poll()
        poll.register(descriptor, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            discard_output(sys.stdout)
            return True
    return False


def discard_output(stream: Any) -> None:
    """Write nothing more to where a standard stream goes, not even at exit."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - no path of a user
        os.dup2(nowhere.fileno(), stream.fileno())

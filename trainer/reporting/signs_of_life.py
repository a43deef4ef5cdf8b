"""Signs of life: what a command does, how far it is and how long the rest takes, whenever it is silent.

    ⠹ new: loads transformers  0:04
    ⠹ train: steps ━━━━━━━━━━────────────── 31/60 3.2/s 0:00:09 loss 0.5812

On a terminal this is its last line, drawn once nothing was written for a second. Elsewhere it is a line like any other, written once
nothing was for some seconds. A thread does both, because nothing else can speak while a library is imported. It and the streams use
no lock of Python's own that a fork could copy while it is held.

A process that another one has started (the flow its stages, a stage its training) reports what it does by a file (`VARIABLE`), and the
other one draws it: only one process moves the cursor of a terminal.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from trainer.environment import environment_variable

VARIABLE: Final = "EVERGREEN_PROGRESS_FILE"
"""Environment variable: path of the file by which a process reports to the one that has started it."""
DRAW_AFTER_S: Final = 1.0
LINE_AFTER_S: Final = 9.0
"""Seconds without output until a line says what goes on. A process that another one has started writes its line sooner."""
_CHILD_LINE_AFTER_S: Final = 7.0
_FRACTION: Final = 50
"""Of long work, lines come each time another fiftieth of the time has passed: of a day's training about 250."""
_TICK_S: Final = 0.2
_FRESH_S: Final = 5.0
"""Seconds for which a report counts, if the process that writes it does not get to it, or was killed."""
_WIDTH: Final = 24
_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_CLEAR: Final = b"\r\x1b[2K"
_OURS: Final = {"params", "trainer", "tasks", "flows"}


class Work(NamedTuple):
    """What goes on: a count of rows, steps or the like, or with `done` None only words."""

    what: str
    done: int | None = None
    total: int | None = None
    note: str = ""
    seconds: float = 0.0
    """Since its start."""
    before: int = 0
    """How many were done at its start."""
    since_s: int = 0
    """Seconds since it began, or since one more was done."""

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest takes; None if that is unknown."""
        made = (self.done or 0) - self.before
        return self.seconds / made * (self.total - (self.done or 0)) if self.total and made > 0 else None

    def as_line(self) -> str:
        if self.done is None:
            return f"{self.what} ({self.since_s} s)" if self.since_s else self.what
        share = f" of {self.total} ({100 * self.done / self.total:.0f}%)" if self.total else ""
        left = "" if self.left_s is None else f", {self.left_s:.0f} s left"
        late = f", no new one for {self.since_s} s" if self.since_s >= LINE_AFTER_S else ""
        return f"{self.what}: {self.done}{share}{left}{f', {self.note}' if self.note else ''}{late}"

    def as_bar(self) -> str:
        """Return it as the last line of a terminal."""
        if self.done is None:
            return f"{self.what}  {self.since_s // 60}:{self.since_s % 60:02}"
        full = round(_WIDTH * self.done / self.total) if self.total else 0
        parts = [self.what, "━" * full + "─" * (_WIDTH - full), f"{self.done}/{self.total or '?'}"]
        if (made := self.done - self.before) > 0 and self.seconds:
            speed = made / self.seconds
            parts.append(f"{speed:,.1f}/s" if speed >= 0.1 else f"{60 * speed:,.1f}/min")
        if self.left_s is not None:
            parts.append(f"{self.left_s // 3600:.0f}:{self.left_s // 60 % 60:02.0f}:{self.left_s % 60:02.0f}")
        return " ".join(part for part in (*parts, self.note) if part)


class SignsOfLife:
    """Watches what this process writes, and shows what it does when it is silent.

    Args:
        command: what to call the process, until it says more.
    """

    def __init__(self, command: str) -> None:
        self.note, self._command = f"{command}: starts", command
        self.followed: Path | None = None
        self.paused = 0
        self._report = Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None
        self._screen = sys.stdout if not self._report and is_terminal(sys.stdout) else None
        self._line_after_s = _CHILD_LINE_AFTER_S if self._report else LINE_AFTER_S
        self._lock = threading.RLock()  # a signal handler may write while its thread does
        self.work: tuple[str, int, int | None, str, float, int] | None = None
        self._begun: dict[str, tuple[float, int, int]] = {}
        self._start = self._written = self._lined = self.noted = time.monotonic()
        self._reported: tuple[str, float] = ("", 0.0)
        self._moved: tuple[tuple[str, int | None], float] = (("", None), 0.0)
        self._is_open = self._is_drawn = self._has_ended = False
        self._frame = 0

    def start(self) -> None:
        """Watch the standard streams until this process ends."""
        sys.stdout, sys.stderr = WatchedStream(sys.stdout, self), WatchedStream(sys.stderr, self)
        # A thread that held the lock while another one forks would leave it locked in the child, which has no such thread.
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._end_in_fork
        )
        atexit.register(self.end)
        threading.Thread(target=self._watch, name="signs of life", daemon=True).start()

    def end(self) -> None:
        """Show nothing more."""
        with self._lock:
            self._has_ended = True
            self._clear()
        if self._report:
            with contextlib.suppress(OSError):
                self._report.unlink(missing_ok=True)

    def show(self, what: str, done: int, total: int | None, note: str) -> None:
        """Note how far some work is; it may take turns with other work, as steps do with validations."""
        start, before, last = self._begun.get(what, (0.0, 0, done + 1))
        if last > done:  # it begins, or begins again
            start, before = time.monotonic(), done
        self._begun[what] = (start, before, done)
        self.work = (what, done, total, note, start, before)

    def write(self, stream: TextIO, text: str) -> int:
        """Write text of this process below what stands there for good, in place of the sign."""
        with self._lock:
            if self._report and not self._is_open and is_terminal(stream):
                stream.write(_CLEAR.decode())  # what the process that draws has left there
            self._clear()
            count = stream.write(text)
            if seen := re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text):
                self._is_open = seen[-1] not in "\r\n"
            stream.flush()
            self._written = time.monotonic()
        return count

    def _end_in_fork(self) -> None:
        self._has_ended, self._is_drawn, self._report = True, False, None
        self._lock.release()
        _current.clear()

    def _watch(self) -> None:
        while not self._has_ended:
            time.sleep(_TICK_S)
            with (
                contextlib.suppress(OSError, ValueError),
                self._lock,
            ):  # the terminal or the other end of a pipe is gone
                if not self._has_ended:
                    self._tick()

    def _tick(self) -> None:
        now, theirs = time.monotonic(), self._read_followed()
        work = theirs or self._own_work(now)
        if self._report:
            self._write_report(work, now)
        # After a text without an end of line, somebody types an answer.
        if self.paused or self._is_open or (theirs and not self._screen):
            self._written = now
            self._clear()
        elif self._screen:
            self._draw_when_due(work, now)
        elif not (self._report and is_terminal(sys.stdout)):  # there, the process that draws shows it
            self._print_when_due(work, now)

    def _draw_when_due(self, work: Work, now: float) -> None:
        is_long = work.done is not None and work.seconds >= DRAW_AFTER_S
        if now - self._written >= DRAW_AFTER_S or self._is_drawn or is_long:
            self._draw(work.as_bar())

    def _print_when_due(self, work: Work, now: float) -> None:
        due_s = max(self._line_after_s, (work.seconds or now - self._start) / _FRACTION)
        if now - max(self._written, self._lined) >= due_s:
            self._lined = now
            os.write(2, f"{work.as_line()}\n".encode())

    def _own_work(self, now: float) -> Work:
        if self.work:
            what, done, total, note, start, before = self.work
            work = Work(what, done, total, note, now - start, before)
        else:
            library = _find_imported_library()
            work = Work(f"{self._command}: loads {library}" if library else self.note)
        if work[:2] != self._moved[0]:
            self._moved = (work[:2], now)
        since = self.noted if work.what == self.note else self._moved[1]  # other work may come between
        return work._replace(since_s=int(now - since))

    def _read_followed(self) -> Work | None:
        """What a process that this one has started reports; None if it reports nothing now."""
        try:
            if self.followed and time.time() - self.followed.stat().st_mtime < _FRESH_S:
                return Work(*json.loads(self.followed.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # it does not run, or a full disk cut its report short
            pass
        return None

    def _write_report(self, work: Work, now: float) -> None:
        text, (last, at) = json.dumps(work), self._reported
        if self._report and (text != last or now - at > _FRESH_S / 5):
            part = self._report.with_suffix(f".{os.getpid()}")
            part.write_text(text, encoding="utf-8")
            part.replace(self._report)
            self._reported = (text, now)

    def _draw(self, text: str) -> None:
        assert self._screen
        self._frame = (self._frame + 1) % len(_FRAMES)
        line = f"{_FRAMES[self._frame]} {text}"[: shutil.get_terminal_size().columns - 1]
        # The cursor goes back to the start, where what a library writes past Python's streams then begins.
        os.write(self._screen.fileno(), _CLEAR + line.encode(self._screen.encoding or "utf-8", "replace") + b"\r")
        self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn and self._screen:
            self._is_drawn = False
            with contextlib.suppress(OSError):
                os.write(self._screen.fileno(), _CLEAR)


class WatchedStream:
    """A standard stream that takes away the sign of life before it writes."""

    def __init__(self, stream: TextIO, signs: SignsOfLife) -> None:
        self._stream, self._signs = stream, signs

    def write(self, text: str) -> int:
        return self._signs.write(self._stream, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_current: list[SignsOfLife] = []
"""The signs of this process; empty if it was not started as a command."""


def start_signs_of_life(command: str) -> None:
    """Let this process show what it does when it is silent. Call it before anything is imported that takes long."""
    if not _current:
        _current.append(SignsOfLife(command))
        _current[0].start()


def note(text: str) -> None:
    """Say in a few words, such as `new: reads the rows`, what comes next if it may take seconds."""
    for signs in _current:
        signs.note, signs.work, signs.noted = text, None, time.monotonic()


def show_progress(what: str, done: int, total: int | None, note: str = "") -> None:
    """Note that `done` of `total` rows, steps or the like are done; takes less than a microsecond."""
    for signs in _current:
        signs.show(what, done, total, note)


def hide_progress() -> None:
    """Note that the work whose progress was shown has ended."""
    for signs in _current:
        signs.work = None


@contextlib.contextmanager
def no_signs_of_life() -> Iterator[None]:
    """Show nothing in the block, which waits for somebody, such as a server."""
    for signs in _current:
        signs.paused += 1
    try:
        yield
    finally:
        for signs in _current:
            signs.paused -= 1


@contextlib.contextmanager
def show_child_progress(path: Path) -> Iterator[None]:
    """Show what the processes that the block starts report by the file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    for signs in _current:
        signs.followed = path
    try:
        with environment_variable(VARIABLE, str(path.absolute())):
            yield
    finally:
        for signs in _current:
            signs.followed = None
        path.unlink(missing_ok=True)


def is_terminal(stream: TextIO) -> bool:
    """Whether a line that moves can be drawn there."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def _find_imported_library() -> str:
    """Return the library that the main thread imports now; empty if it imports none."""
    frame, found = sys._current_frames().get(threading.main_thread().ident or 0), ""  # noqa: SLF001 (documented)
    while frame:
        if frame.f_code.co_name == "_find_and_load":
            name = str(frame.f_locals.get("name", "")).partition(".")[0]
            found = found if name in _OURS else name
        frame = frame.f_back
    return found

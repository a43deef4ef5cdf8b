"""A bar on the terminal: how far a stage is, how fast it goes, and how long the rest takes.

The process that writes to the terminal draws the bar. That is the one that works, unless the flow runs the stages: the flow logs what
they print, so it draws for them, and they report by a file (`VARIABLE`). Nothing draws where there is no terminal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console

VARIABLE: Final = "EVERGREEN_PROGRESS_FILE"
"""Environment variable: path of the file by which a stage reports to the process that draws."""
AFTER_S: Final = 1.0
"""How long work goes on without a bar: most of it has ended by then, and the import of rich takes a third of a second."""
EVERY_S: Final = 0.2
"""Seconds between two looks of the bar."""


class ProgressBar:
    """A bar below all other lines of a terminal. It has no thread, so that a process can fork: it moves when it is shown.

    Args:
        console: returns the terminal; called when the bar is first shown.
    """

    def __init__(self, console: Callable[[], Console]) -> None:
        self._console = console
        self._progress: Any = None
        self._at_end = contextlib.ExitStack()

    def show(self, what: str, done: int, total: int | None, note: str) -> None:
        """Draw it."""
        if self._progress is None:
            self._start()
        task = next(iter(self._progress.tasks), None)
        if task is None or task.description != what:
            if task:
                self._progress.remove_task(task.id)
            self._progress.add_task(what, total=total, completed=done, note=note)
        else:
            self._progress.update(task.id, total=total, completed=done, note=note)
        self._progress.refresh()

    def hide(self) -> None:
        """Remove it from the terminal."""
        self._at_end.close()
        self._progress = None

    def _start(self) -> None:
        from rich import progress
        from rich.text import Text
        from rich.theme import Theme

        class Rate(progress.ProgressColumn):
            def render(self, task: progress.Task) -> Text:
                speed = task.speed or 0
                return Text(f"{speed:,.1f}/s" if speed >= 0.1 else f"{60 * speed:,.1f}/min" if speed else "")

        console = self._console()
        console.push_theme(Theme())  # Prefect's console lacks the styles of a bar
        self._at_end.callback(console.pop_theme)
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(24),
            progress.MofNCompleteColumn(),
            Rate(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        stdout = sys.stdout
        self._progress.start()
        self._at_end.callback(self._progress.stop)
        console.show_cursor()  # rich hides it, and a killed process would leave it hidden
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stdout:
                handler.setStream(sys.stdout)
                self._at_end.callback(handler.setStream, stdout)


_display: list[ProgressBar | Path] = []
"""Where this process shows its progress, one place or none: its terminal, or the file by which it reports to another one."""


def enable_progress_bar() -> None:
    """Let this process show its progress, if a terminal is there; its own children do not."""
    _display.clear()
    if path := os.environ.get(VARIABLE):
        _display.append(Path(path))
    elif is_terminal(sys.stdout):
        _display.append(ProgressBar(_standard_output))


def show_progress(what: str, done: int, total: int | None, note: str = "") -> bool:
    """Show that `done` of `total` rows, steps or the like are done; return whether no line needs to say the same."""
    for place in _display:
        if isinstance(place, ProgressBar):
            place.show(what, done, total, note)
            return True
        part = place.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # a full disk ends the stage by itself if it matters
            part.write_text(json.dumps([what, done, total, note]), encoding="utf-8")
            part.replace(place)
    return False


def hide_progress() -> None:
    """Remove the bar, because the work has ended."""
    for place in _display:
        if isinstance(place, ProgressBar):
            place.hide()
        else:
            with contextlib.suppress(OSError):
                place.unlink(missing_ok=True)


def is_terminal(stream: TextIO) -> bool:
    """Whether a bar can move there."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


@contextlib.contextmanager
def draw_child_progress(path: Path, console: Callable[[], Console]) -> Iterator[None]:
    """Draw what the processes that the block starts report by the file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    bar, ended = ProgressBar(console), threading.Event()

    def follow() -> None:
        while not ended.wait(EVERY_S):
            try:
                bar.show(*json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError):  # nothing is in progress, or a full disk cut it short
                bar.hide()
        bar.hide()

    thread = threading.Thread(target=follow, name="progress bar", daemon=True)
    os.environ[VARIABLE] = str(path.absolute())
    thread.start()
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        ended.set()
        thread.join()
        path.unlink(missing_ok=True)


def _standard_output() -> Console:
    from rich.console import Console

    return Console(file=getattr(sys.stdout, "stream", sys.stdout))  # a bar moves the cursor

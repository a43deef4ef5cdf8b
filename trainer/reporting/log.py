"""One log for people and one for files: what a stage does is printed in a few lines, and everything is in `runs/<recipe>/logs/<stage>.log`.

    2026-11-27 03:00:12 INFO trainer.reporting.callbacks: train: step 5 of 60, loss 1.0936, learning rate 2.00e-04

People get what this project says at INFO and above, and errors of libraries. Warnings of libraries, what DVC and transformers advise,
single steps and all figures of a report are in the file only. Every process of a stage appends to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from params.foundation.secrets import without_secrets
from trainer.environment import environment_variable

OURS: Final = ("params", "trainer", "tasks")
_OWN_HANDLERS: Final = (
    *("transformers", "datasets", "huggingface_hub", "torch"),
    *("torch.distributed", "torch.distributed.distributed_c10d", "torch._dynamo", "torch._inductor"),
)
"""Libraries, and parts of them, that print what they log by a handler of their own, which they add when they are imported."""
VARIABLE: Final = "EVERGREEN_LOG_FILE"
"""Environment variable: path of the log of a stage, for the processes that it starts."""
_MAX_BYTES: Final = 4 << 20
"""A file that is larger when a stage starts becomes `<stage>.log.1`, in place of the one before."""


_levels = {"ours": logging.INFO, "libraries": logging.ERROR}
"""From which level on people see a line."""


def log_for_people(level: int = logging.INFO) -> None:
    """Print what people should read on standard output: our lines at `level` and above; who has called us may have a log."""
    printing = logging.StreamHandler(sys.stdout)
    printing.addFilter(is_for_people)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[printing])
    set_level_for_people(level, logging.ERROR)


def set_level_for_people(ours: int, libraries: int) -> None:
    """Change what people see; a file still gets everything."""
    _levels.update(ours=ours, libraries=libraries)
    has_file = any(isinstance(handler, logging.FileHandler) for handler in logging.getLogger().handlers)
    for package in OURS:
        logging.getLogger(package).setLevel(logging.DEBUG if has_file else ours)


def is_for_people(record: logging.LogRecord) -> bool:
    """Whether a line is for people: ours, of a recipe's own code a warning, of a library only an error."""
    if record.name.partition(".")[0] in OURS:
        return record.levelno >= _levels["ours"]
    is_library = record.pathname.startswith((sys.prefix, sys.base_prefix, "<"))
    return record.levelno >= (_levels["libraries"] if is_library else logging.WARNING)


@contextlib.contextmanager
def libraries_print_nothing() -> Iterator[None]:
    """Let our handlers have the warnings of Python and of libraries in the block; a user's TORCH_LOGS are printed."""
    libraries = [name for name in _OWN_HANDLERS if "TORCH_LOGS" not in os.environ or not name.startswith("torch")]
    with contextlib.ExitStack() as ended:
        for library in libraries:
            _take_over(library)
            logging.getLogger(library).addHandler(first := _TakesOver())
            first.name = library
            ended.callback(logging.getLogger(library).removeHandler, first)
        logging.captureWarnings(capture=True)
        ended.callback(logging.captureWarnings, capture=False)
        yield


@contextlib.contextmanager
def log_to_file(path: Path, *, rank: int = 0) -> Iterator[None]:
    """Let this process append everything that it logs in the block to the log of its stage, and its children theirs.

    A log that cannot be written, for example because the disk is full, is left out: that fails a stage where it matters.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8", errors="replace")
    except OSError:
        yield
        return
    whose = f"[{rank}] " if rank else ""
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s {whose}%(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")
    )
    root, levels = logging.getLogger(), {name: logging.getLogger(name).level for name in OURS}
    root.addHandler(handler)
    for package in OURS:
        logging.getLogger(package).setLevel(logging.DEBUG)
    try:
        with environment_variable(VARIABLE, str(path.absolute())):
            yield
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):  # its last lines have no room
            handler.close()
        for package, level in levels.items():
            logging.getLogger(package).setLevel(level)


def log_of_training(folder: Path) -> Path:
    """Return where the processes of a training log: the log of the stage that has started it, or one in the run's folder."""
    return Path(os.environ.get(VARIABLE, folder / "train.log"))


def set_large_log_aside(path: Path) -> None:
    """Let a log that has become large, over many runs, begin anew; the one before is kept."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > _MAX_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))


class _LogFile(logging.FileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Leave out a line that cannot be written."""


def _take_over(library: str) -> None:
    """Let our handlers have what a library and its parts log, now and after its import, which may add handlers of its own."""
    for name in [name for name in logging.root.manager.loggerDict if f"{name}.".startswith(f"{library}.")]:
        if any(not isinstance(handler, _TakesOver) for handler in logging.getLogger(name).handlers):
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).propagate = True


class _TakesOver(logging.Handler):
    """Takes over a library at its first line, before it prints that."""

    def emit(self, record: logging.LogRecord) -> None:
        _take_over(str(self.name))

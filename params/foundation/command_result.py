"""How a command ended, as data for the process that started it.

The starter reserves a file and passes its path on in the environment. The command writes to it that it succeeded, or the
error that ended it. If it writes nothing, it did not run, was killed, or crashed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from params.foundation.artifacts import translate_disk_errors
from params.foundation.errors import (
    EvergreenError,
    KilledError,
    ModelError,
    StorageError,
    error_class_of_exit_code,
    error_from_json,
)
from params.foundation.printable import discard_output

VARIABLE = "EVERGREEN_COMMAND_RESULT"  # environment variable: path of the file for the result
_SUCCEEDED = "succeeded"
_SIZE = 16 * 1024
_reserved: list[Path] = []
"""The file for the result of this command; empty if its starter reserved none."""


@dataclass(frozen=True)
class CommandResult:
    error: EvergreenError | None = None  # the error that ended it; None if it succeeded


def preallocate_result_file(path: Path) -> dict[str, str]:
    """Empty the file at `path`, and return the environment variable that names it.

    The file is filled with blanks, so that an error can still be written to it when the disk is full.
    """
    with translate_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with path.open("r+b") as file:
            file.write(b" " * _SIZE)
            file.truncate()
    return {VARIABLE: str(path.absolute())}


@contextlib.contextmanager
def report_result_on_exit() -> Iterator[None]:
    """Report how the block ends to the starter of this process, as `report_to_starter` does.

    Processes that the block starts do not inherit the file: they are not the command whose result it is.
    """
    outer, path = list(_reserved), os.environ.pop(VARIABLE, None)
    _reserved[:] = [Path(path)] if path else []
    try:
        with _name_panics():
            yield
        report_to_starter(None)
    except EvergreenError as error:
        report_to_starter(error)
        raise
    finally:
        _reserved[:] = outer


@contextlib.contextmanager
def _name_panics() -> Iterator[None]:
    """Turn a panic of a library in Rust, which is no Exception, into an error: files of others have caused it where nothing has named them."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        what = f"a library has given up at what it read: {error}"
        fix = "look at the files that were given last, such as the tokenizer of a model: use others, or remove the odd pattern"
        raise ModelError("a library", what, fix) from error


@contextlib.contextmanager
def explain_keyboard_interrupt(kept: str) -> Iterator[None]:
    """Let Ctrl-C in the block end the command with a text that says what is kept, unless something in it says more."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(str(interrupt) or kept) from None


def has_starter() -> bool:
    """Whether another command has started this one, and says at its end what this one leaves."""
    return bool(_reserved)


def report_to_starter(error: EvergreenError | None) -> None:
    """Write how this command ends to the file that its starter reserved; without one, a person started it, who reads its error."""
    named = os.environ.get(VARIABLE)  # outside of `report_result_on_exit`: what this process starts reports there, too
    files = _reserved or ([Path(named)] if named else [])
    for path in files:
        write_result_file(path, error)
    if error and not files:
        sys.stdout.flush()
        try:
            print(f"\n{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        except OSError:  # its disk is full
            discard_output(sys.stderr)


def report_lost_output(why: OSError | None) -> int:
    """Report why standard output could not be written, and return the exit status; without a reason, return 0."""
    if not why:
        return os.EX_OK
    what = f"cannot be written: {why.strerror}; all else is done"
    report_to_starter(error := StorageError("standard output", what, "send it to a disk with room"))
    return error.exit_code


def write_result_file(path: Path, error: EvergreenError | None) -> None:
    """Write the end of a command to a reserved file; a file that was removed meanwhile stays removed."""
    text = error.to_json(_SIZE) if error else _SUCCEEDED
    with contextlib.suppress(OSError), path.open("r+b") as file:
        file.write(text.ljust(_SIZE).encode())


def read_result_file(path: Path) -> CommandResult | None:
    """Return the result in `path`; None if the command did not write one."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        return CommandResult(None if text == _SUCCEEDED else error_from_json(text))
    except (OSError, ValueError):
        return None


def error_of_failed_command(
    name: str, status: int, said: str, result: CommandResult | None, log: Path | None = None
) -> EvergreenError:
    """Return the error that a command reported; if it reported none, what its exit status and the last line that it wrote say.

    `log` is where it may have written more than it printed.
    """
    number = -status if status < 0 else status - 128
    if 0 < number < signal.NSIG:
        return KilledError(name, f"was ended by signal {number}", "start it again: training resumes where it was")
    if result and result.error:
        return result.error.replace(where=f"{name}: {result.error.where}")
    last = (said.strip().splitlines() or ["it wrote nothing"])[-1]
    return error_class_of_exit_code(status)(
        name, f"exited with {status}: {last}", f"see {log if log and log.exists() else 'its output above'}"
    )

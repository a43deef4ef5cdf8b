"""Commands that the flow starts, `python -m module ...`, and the errors that end them."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence

from flows import child_process
from flows.child_process import CompletedCommand, Logger
from params import EvergreenError, KilledError, command_result
from params.artifacts import Artifacts
from params.errors import class_of


def run(
    module: str,
    arguments: Sequence[str],
    artifacts: Artifacts,
    log: Logger,
    *,
    name: str,
    grace_s: float = child_process.GRACE_S,
    limit_s: float = math.inf,
) -> command_result.CommandResult | None:
    """Run a command that reports how it ends; None if it had nothing to report.

    Raises:
        EvergreenError: the error that it reported; `name` says where.
        subprocess.TimeoutExpired: it took longer than `limit_s`.
        KeyboardInterrupt: Ctrl-C was pressed; it says what is kept.
    """
    result_file = command_result.reserve(artifacts.command_result)
    try:
        done = child_process.run(module, arguments, log, grace_s=grace_s, limit_s=limit_s, environment=result_file)
    except KeyboardInterrupt:
        ended = command_result.read(artifacts.command_result)
        kept = ended.error.fix if ended and ended.error else "start again: what has ended is kept"
        raise KeyboardInterrupt(f"{name}\n  {kept}") from None
    result = command_result.read(artifacts.command_result)
    if done.status:
        raise error_of(name, done, result)
    return result


def error_of(name: str, done: CompletedCommand, result: command_result.CommandResult | None) -> EvergreenError:
    """The error that a command reported; if it reported none, what its exit status says."""
    number = -done.status if done.status < 0 else done.status - 128
    if 0 < number < signal.NSIG:
        return KilledError(name, f"was ended by signal {number}", "start it again: training resumes where it was")
    if result and result.error:
        return result.error.replace(where=f"{name}: {result.error.where}")
    last = next((line for line in reversed(done.lines) if line.strip()), "it wrote nothing")
    return class_of(done.status)(name, f"exited with {done.status}: {last}", "see its output above")

"""DVC, as the flow uses it: is a stage stale, and `python -m flows.dvc_project.stage <stage>@<recipe> [--force]`, which runs one.

The flow asks in its own process, in 0.03 s. It runs a stage in another process, because the owner of one of DVC's locks is
a process: two stages that run in one process would share them.

DVC's Python API gives errors as exceptions. Only the exit status of a stage's command is nowhere but in a message; a
contract test compares `parse_exit_status` with what the real DVC says.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flows.dvc_project import restore
from params import DataError, EvergreenError, RecipeError, TransientError
from params.foundation import command_result
from params.foundation.artifacts import Artifacts, as_storage_error
from trainer.reporting import log, signs_of_life
from trainer.runtime.memory import reduce_garbage_collection

_CACHE = Path(".dvc", "cache")
_NOTHING_FREE = 2**20
"""Bytes below which a disk is taken for full: large files find no room, while a small one may."""


def is_any_stage_stale(*names: str) -> bool:
    """Return whether DVC would run one of the stages, for example `train@default`.

    With a DVC remote, a missing output makes no stage stale: it is restored when a stage needs it.

    Raises:
        TransientError: another process uses the stage's artifacts.
        RecipeError: dvc.yaml has no such stage, or a file of DVC's is damaged.
        EvergreenError: DVC fails for another reason.
    """
    from dvc.dvcfile import PROJECT_FILE, load_file

    with open_dvc_repository(names[0]) as repo, repo.lock:
        stages = load_file(repo, PROJECT_FILE).stages  # once for all: `collect` reads dvc.yaml and dvc.lock each time
        return any(restore.is_stale_or_drop_outdated(repo, stages[name]) for name in names)


def restore_inputs(name: str, path: Path | None = None) -> None:
    """Bring the inputs of a stage, or only the one at `path`, to their recorded state, if DVC has that."""
    with open_dvc_repository(name) as repo, repo.lock:
        restore.restore_inputs(repo, name, path)


@contextlib.contextmanager
def open_dvc_repository(name: str, *, log_level: int = logging.ERROR) -> Iterator[Any]:
    """Open the project's DVC repository; errors of DVC in the block become ours, and `name` says where.

    DVC's warnings, such as that of each output that no stage has made yet, are not logged by default.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(log_level)  # after its import, which sets the level, too
    _draw_no_bars()
    try:
        with Repo(_wait_for_lock=True) as repo:
            yield repo
    except (DvcException, OSError) as error:
        raise to_evergreen_error(name, error) from None


def run_action_for_exit_status(action: Callable[[Any, str], None], recipe: str) -> int:
    """Call `action` with the DVC repository and the recipe; report its error, and return an exit status."""
    try:
        with command_result.report_result_on_exit(), open_dvc_repository(recipe, log_level=logging.WARNING) as repo:
            action(repo, recipe)
    except EvergreenError as error:
        return error.exit_code
    return os.EX_OK


def main(name: str, *options: str) -> int:
    """Run one stage if it is stale, or in any case with the option `--force`. What it reads and does not exist locally is restored.

    What DVC says of its own work, and its advice on git, is in the stage's log.

    Returns:
        The exit status of the stage's command; 128 and the signal's number if a signal ended it. If DVC itself fails, that
        of the error that it reports.
    """
    from dvc.exceptions import DvcException, ReproductionError
    from dvc.repo import Repo, lock_repo
    from dvc.stage.exceptions import StageCmdFailedError

    signs_of_life.note(f"{name}: DVC compares and keeps files")
    stage, _, recipe = name.partition("@")
    artifacts = Artifacts(recipe)
    _draw_no_bars()
    _keep_only_warnings_on_terminal()
    logging.getLogger("dvc_data").addHandler(logged := _LoggedError())
    stage_log = artifacts.stage_log(stage)
    with log.libraries_print_nothing(), log.log_to_file(stage_log):
        try:
            # Without waiting for locks, a stage that ends while another DVC process holds the project's lock for more than
            # 3 s would fail with its outputs uncommitted.
            with (
                signs_of_life.show_child_progress(artifacts.scratch / f"progress-{stage}"),
                Repo(_wait_for_lock=True) as repo,
                lock_repo(repo),
            ):
                force = "--force" in options
                if force or restore.is_stale_or_drop_outdated(repo, *repo.stage.collect(name)):
                    restore.restore_or_run(repo, name, force=force)
        except (DvcException, OSError, EvergreenError) as error:
            cause = (error.__cause__ or error) if isinstance(error, ReproductionError) else error
            if not isinstance(cause, StageCmdFailedError):
                logging.getLogger(__name__).warning("%s", name, exc_info=cause)
        else:
            return os.EX_OK
    if isinstance(cause, StageCmdFailedError):
        status = parse_exit_status(cause)
        return 128 - status if status < 0 else status
    return _report_failure_of_dvc(name, cause, logged.error, stage_log)


def _report_failure_of_dvc(name: str, cause: BaseException, of_disk: OSError | None, stage_log: Path) -> int:
    """Report why DVC failed, which an error of the disk before it may explain, and return the exit status."""
    if not isinstance(cause, EvergreenError):
        found = to_evergreen_error(name, of_disk or cause, f"see {stage_log}")
    elif of_disk:
        found = as_storage_error(of_disk, _CACHE) or cause
    else:
        found = cause
    command_result.report_to_starter(found)
    return found.exit_code


def _keep_only_warnings_on_terminal() -> None:
    for library in ("dvc", "dvc_objects", "dvc_data"):
        logger = logging.getLogger(library)
        logger.handlers = [handler for handler in logger.handlers if handler.level >= logging.WARNING]


def _draw_no_bars() -> None:
    """Keep DVC from the terminal, where the signs of life are: from its bars, and from its last code for colours, which would be text."""
    logging.getLogger("dvc.progress").setLevel(logging.CRITICAL)
    atexit.unregister(importlib.import_module("colorama.initialise").reset_all)


class _LoggedError(logging.Handler):
    """Keeps the first error of the disk that DVC logs: it goes on after a failed copy, and fails later for another reason."""

    error: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError):
            self.error = self.error or error


def parse_exit_status(failure: Exception) -> int:
    """Return the exit status of a stage's command from DVC's error; negative if a signal ended it."""
    found = re.search(r"exited with (-?\d+)$", str(failure))
    return int(found[1]) if found else os.EX_SOFTWARE


def to_evergreen_error(name: str, error: BaseException, more: str = "`dvc status -v` may say more") -> EvergreenError:
    """Return the error for a failure of DVC; only a lock that another process holds is worth a retry.

    `more` is where to read on if nothing is known of it.
    """
    from dvc.lock import LockError
    from dvc.parsing import ResolveError
    from dvc.stage.exceptions import StageNotFound
    from dvc.utils.serialize import ParseError
    from dvc.utils.strictyaml import YAMLSyntaxError, YAMLValidationError

    if isinstance(error, LockError):
        reason = " ".join(str(error).partition("\n\n")[0].split())  # without DVC's advice to remove its lock file
        return TransientError(name, f"another process uses its artifacts: {reason}", "wait until it ends, or stop it")
    if isinstance(error, StageNotFound):
        return RecipeError("recipes.yaml", f"there is no stage {name}", "add the recipe to `recipes` there")
    if field := re.search(r"Could not find 'item\.(\w+)'", str(error)):
        what = f"the item of a recipe has no `{field[1]}`"
        return RecipeError("recipes.yaml", what, "add it to each item: the comment at the top says what it is")
    if isinstance(error, YAMLSyntaxError | YAMLValidationError | ParseError | ResolveError):
        file = Path(str(getattr(error, "relpath", "") or getattr(error, "path", "recipes.yaml"))).name
        restore = "take it from git, `git checkout dvc.lock`; DVC then runs what is stale"
        return RecipeError(file, f"{name}: {error}", restore if file == "dvc.lock" else f"fix {file}")
    if isinstance(error, FileNotFoundError) and error.filename:
        fix = "restore it: run the stage that makes it, `dvc pull` it, or take it from git"
        return DataError(str(error.filename), f"{name} needs it, and it is missing", fix)
    if shutil.disk_usage(Path()).free < _NOTHING_FREE:  # it cuts DVC's own files short, which are then called corrupted
        error = OSError(errno.ENOSPC, str(error))
    return as_storage_error(error, _CACHE) or EvergreenError(name, f"DVC: {str(error) or repr(error)}", more)


if __name__ == "__main__":
    signs_of_life.start_signs_of_life(sys.argv[1])
    reduce_garbage_collection()
    sys.exit(main(*sys.argv[1:]))

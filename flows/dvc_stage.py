"""DVC, as the flow uses it: is a stage stale, and `python -m flows.dvc_stage <stage>@<recipe> [--force]`, which runs one.

The flow asks in its own process, in 0.03 s. It runs a stage in another process, because the owner of one of DVC's locks is
a process: two stages that run in one process would share them.

DVC's Python API gives errors as exceptions. Only the exit status of a stage's command is nowhere but in a message; a
contract test compares `exit_status` with what the real DVC says.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

from params import EvergreenError, RecipeError, TransientError, command_result


def is_stale(name: str) -> bool:
    """Return whether DVC would run the stage `name`, for example `train@default`.

    Raises:
        TransientError: another process uses the stage's artifacts.
        RecipeError: dvc.yaml has no such stage, or cannot be read.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.stage.exceptions import StageNotFound

    logging.getLogger("dvc").setLevel(logging.ERROR)
    try:
        with Repo(_wait_for_lock=True) as repo, repo.lock:
            (stage,) = repo.stage.collect(name)
            return bool(stage.changed())
    except LockError as error:
        raise _busy(name, error) from None
    except StageNotFound:
        fix = "add the recipe to `recipes` at the top of dvc.yaml"
        raise RecipeError("dvc.yaml", f"there is no stage {name}", fix) from None
    except DvcException as error:
        raise RecipeError("dvc.yaml", f"{name}: {error}", "fix dvc.yaml") from None


def main(name: str, *options: str) -> int:
    """Run one stage if it is stale, or in any case with the option `--force`.

    Returns:
        The exit status of the stage's command; 128 and the signal's number if a signal ended it.
    """
    from dvc.exceptions import DvcException, ReproductionError
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.stage.exceptions import StageCmdFailedError

    cause: BaseException
    try:
        # Without waiting for locks, a stage that ends while another DVC process holds the project's lock for more than
        # 3 s would fail with its outputs uncommitted.
        with Repo(_wait_for_lock=True) as repo:
            repo.reproduce(name, single_item=True, force="--force" in options)
    except ReproductionError as error:
        cause = error.__cause__ or error
    except DvcException as error:
        cause = error
    else:
        return os.EX_OK
    print(f"DVC: {cause}", file=sys.stderr, flush=True)
    if isinstance(cause, StageCmdFailedError):
        status = exit_status(cause)
        return 128 - status if status < 0 else status
    found = _busy(name, cause) if isinstance(cause, LockError) else EvergreenError(name, f"DVC: {cause}", _SEE_ABOVE)
    if path := os.environ.get(command_result.VARIABLE):
        command_result.write(Path(path), found)
    return found.exit_code


_SEE_ABOVE = "see its output above"


def exit_status(failure: Exception) -> int:
    """Return the exit status of a stage's command from DVC's error; negative if a signal ended it."""
    found = re.search(r"exited with (-?\d+)$", str(failure))
    return int(found[1]) if found else os.EX_SOFTWARE


def _busy(name: str, error: BaseException) -> TransientError:
    reason = " ".join(str(error).partition("\n\n")[0].split())  # without DVC's advice to remove its lock file
    return TransientError(name, f"another process uses its artifacts: {reason}", "wait until it ends, or stop it")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

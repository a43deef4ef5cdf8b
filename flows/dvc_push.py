"""`python -m flows.dvc_push <recipe>`: send what the recipe's stages have made to the default DVC remote."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from flows.dvc_remote import DvcRemote
from flows.dvc_stage import error_of
from params import EvergreenError, RemoteRefusedError, command_result
from params.artifacts import STAGES
from trainer.runtime.memory import collect_rarely


def main(recipe: str) -> int:
    """Send what dvc.lock records of a recipe; return an exit status."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)
    try:
        with Repo(_wait_for_lock=True) as repo, repo.lock:
            push(repo, recipe)
    except (DvcException, OSError, EvergreenError) as error:
        found = error if isinstance(error, EvergreenError) else error_of(recipe, error)
        print(f"DVC: {found}", file=sys.stderr, flush=True)
        if path := os.environ.get(command_result.VARIABLE):
            command_result.write(Path(path), found)
        return found.exit_code
    return os.EX_OK


def push(repo: Any, recipe: str) -> None:
    """Send what dvc.lock records of a recipe, and say how much was new.

    Raises:
        DataError: an object is neither here nor on the remote.
        RemoteRefusedError, TransientError: the remote refuses, or does not answer.
    """
    remote = DvcRemote.of(repo)
    if not remote:
        what = "keeps versions of files, which cannot be sent without a change of dvc.lock"
        fix = "use a remote without version_aware and worktree"
        raise RemoteRefusedError("the default DVC remote", what, fix)
    stages = [stage for name in STAGES for stage in repo.stage.collect(f"{name}@{recipe}")]
    print(f"record: {remote} got {remote.push(stages)} new objects", flush=True)


if __name__ == "__main__":
    collect_rarely()
    sys.exit(main(*sys.argv[1:]))

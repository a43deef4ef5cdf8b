"""What the commands that use DVC for a recipe have in common: the repository, and how they report an error."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.dvc_stage import error_of
from params import EvergreenError, command_result


def run(action: Callable[[Any, str], None], recipe: str) -> int:
    """Call `action` with the DVC repository and the recipe; report its error, and return an exit status."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)
    try:
        with Repo(_wait_for_lock=True) as repo:
            action(repo, recipe)
    except (DvcException, OSError, EvergreenError) as error:
        found = error if isinstance(error, EvergreenError) else error_of(recipe, error)
        print(f"DVC: {found}", file=sys.stderr, flush=True)
        if path := os.environ.get(command_result.VARIABLE):
            command_result.write(Path(path), found)
        return found.exit_code
    return os.EX_OK

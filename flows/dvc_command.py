"""What the commands that use DVC for a recipe have in common: the repository, and how they report an error."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from flows import dvc_stage
from params import EvergreenError, command_result


def run(action: Callable[[Any, str], None], recipe: str) -> int:
    """Call `action` with the DVC repository and the recipe; report its error, and return an exit status."""
    logging.getLogger("dvc").setLevel(logging.WARNING)
    try:
        with command_result.reported(), dvc_stage.opened(recipe) as repo:
            action(repo, recipe)
    except EvergreenError as error:
        print(f"DVC: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return os.EX_OK
